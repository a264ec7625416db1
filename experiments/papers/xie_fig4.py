"""Xie et al. Fig. 4 (MNIST): attack inefficacy of UserDP-FedAvg by number of bad users."""

from precad.experiments.papers.xie_inefficacy import (
    BACKDOOR,
    BOUND,
    DISTRIBUTED,
    FLIPPING,
    MODELS,
    ByAttackers,
)
from precad.experiments.papers.xie_levels import USER_SETTINGS, USERS
from precad.experiments.study import EXPERIMENTS, Experiment, Scale

_BY_SHARE = [
    {"attack": attack, "attack_options": {"gamma": 50.0}, "bad_share": part}
    for attack in (BACKDOOR, FLIPPING)
    for part in (0.2, 1.0)
]
_BY_FACTOR = [
    {"attack": attack, "attack_options": {"gamma": gamma}, "bad_share": 1.0}
    for attack, gammas in (
        *((BACKDOOR, (1.0, 100.0)), (FLIPPING, (1.0, 100.0)), (DISTRIBUTED, (50.0,))),
    )
    for gamma in gammas
]
FIGURE = ByAttackers(
    USERS,
    [*_BY_SHARE, *_BY_FACTOR],
    {Scale.SMALL: (0, 2, 8), Scale.PAPER: (0, 1, 2, 3, 4, 5, 6, 8, 10)},
    0.4344,
)

EXPERIMENTS.register("xie-fig4")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 4 (MNIST)",
        claim="Inefficacy falls with k, poisoning more of an attacker's records comes closer to "
        "the certified bound, and with DP the factor γ and the kind of attack hardly matter.",
        does="Backdoor (BKD), distributed backdoor (DBA) and label flipping (LF) by k of 200 users "
        "who poison a share α of their records and scale their updates by γ; σ = 2.5, five "
        "rounds. Bounds as published (Theorem 3), and sound: exact, for users that "
        "replace their updates, from a lower bound of J(D) at 99 %.",
        settings={
            scale: {
                **settings,
                "rounds": 5,
                "noise_multiplier": 2.5,
                "bound": BOUND[scale],
                "models": MODELS,
            }
            for scale, settings in USER_SETTINGS.items()
        },
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
