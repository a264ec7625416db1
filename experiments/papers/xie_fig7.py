"""Xie et al. Fig. 7 and 12 (MNIST): inefficacy of UserDP-FedAvg by ε, and the fewest attackers."""

from precad.experiments.papers.xie_inefficacy import BACKDOOR, BOUND, FLIPPING, MODELS, ByEpsilon
from precad.experiments.papers.xie_levels import USER_SETTINGS, USERS
from precad.experiments.study import EXPERIMENTS, Experiment

EPSILON = {1.3: 1.2716, 1.6: 0.8794, 1.9: 0.6608, 2.2: 0.5249, 2.5: 0.4344}
"""After five rounds, at δ = 0.0029, by σ (Xie et al. App. B.1.2)."""
FIGURE = ByEpsilon(
    USERS,
    [
        {"attack": attack, "attack_options": {"gamma": 50.0}, "bad_share": 1.0}
        for attack in (FLIPPING, BACKDOOR)
    ],
    (0, 2, 8),
    EPSILON,
    (1.3, 1.9, 2.5),
    (1.5, 2.0, 4.0),
)

EXPERIMENTS.register("xie-fig7")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 7 (a, d), Fig. 12 (MNIST)",
        claim="With stronger privacy both measured and certified inefficacy are higher, and more "
        "attackers are needed for the same effect.",
        does="Label flipping and backdoor by k of 200 users by noise level, five rounds, "
        "the least k that may bring J down to J(D)/τ by Corollary 1 and soundly.",
        settings={
            scale: {**settings, "rounds": 5, "bound": BOUND[scale], "models": MODELS}
            for scale, settings in USER_SETTINGS.items()
        },
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
