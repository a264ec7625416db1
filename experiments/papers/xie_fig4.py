"""Xie et al. Fig. 4: attack inefficacy of UserDP-FedAvg by number of bad users."""

from collections.abc import Sequence
from typing import Any

from precad.experiments.papers.xie_inefficacy import (
    BACKDOOR,
    BOUND,
    DISTRIBUTED,
    FLIPPING,
    MODELS,
    ByAttackers,
)
from precad.experiments.papers.xie_levels import (
    CIFAR_USER_SETTINGS,
    TEXT_USER_SETTINGS,
    TWEETERS,
    USER_SETTINGS,
    USERS,
    BothScales,
)
from precad.experiments.study import EXPERIMENTS, Experiment, Scale, Settings

BAD = {Scale.SMALL: (0, 2, 8), Scale.PAPER: (0, 1, 2, 3, 4, 5, 6, 8, 10)}
BOTH = (BACKDOOR, FLIPPING)


def _by_share(attacks: Sequence[str]) -> list[Settings]:
    return [_line(attack, 50.0, part) for attack in attacks for part in (0.2, 1.0)]


def _by_factor(attacks: Sequence[str]) -> list[Settings]:
    return [_line(attack, gamma, 1.0) for attack in attacks for gamma in (1.0, 100.0)]


def _line(attack: str, gamma: float, part: float) -> dict[str, Any]:
    return {"attack": attack, "attack_options": {"gamma": gamma}, "bad_share": part}


def _register(
    name: str,
    data: str,
    by: ByAttackers,
    settings: BothScales,
    trained: Settings,
    bound: tuple[float, float],
) -> None:
    sigma, rounds = trained["noise_multiplier"], trained["rounds"]
    EXPERIMENTS.register(name)(
        Experiment(
            paper="Xie et al.",
            figure=f"Fig. 4 ({data})",
            claim="Inefficacy falls with k, poisoning more of an attacker's records comes closer "
            "to the certified bound, and with DP the factor γ and the kind of attack hardly "
            "matter.",
            does="Backdoor (BKD), distributed backdoor (DBA) and label flipping (LF) by k of all "
            "users who poison a share α of their records and scale their updates by γ; "
            f"σ = {sigma:g}, {rounds} rounds. Bounds as published (Theorem 3), and sound: exact, "
            "for users that replace their updates, from a lower bound of J(D) at 99 %.",
            settings={
                scale: {**each, **trained, "bound": at_most, "models": MODELS}
                for (scale, each), at_most in zip(settings.items(), bound, strict=True)
            },
            cells=by.cells,
            measure=by.measure,
            table=by.table,
            plot=by.plot,
        )
    )


_register(
    "xie-fig4",
    "MNIST",
    ByAttackers(
        USERS, [*_by_share(BOTH), *_by_factor(BOTH), _line(DISTRIBUTED, 50.0, 1.0)], BAD, 0.4344
    ),
    USER_SETTINGS,
    {"rounds": 5, "noise_multiplier": 2.5},
    (BOUND[Scale.SMALL], BOUND[Scale.PAPER]),
)
_register(
    "xie-fig4-cifar",
    "CIFAR",
    ByAttackers(
        USERS, [*_by_share(BOTH), *_by_factor(BOTH), _line(DISTRIBUTED, 50.0, 1.0)], BAD, 0.5978
    ),
    CIFAR_USER_SETTINGS,
    {"rounds": 4, "noise_multiplier": 3.0},
    (2.0, 0.2),
)
_register(
    "xie-fig4-text",
    "Sent140",
    ByAttackers(TWEETERS, [*_by_share([FLIPPING]), *_by_factor([FLIPPING])], BAD, 0.4102),
    TEXT_USER_SETTINGS,
    {"rounds": 3, "noise_multiplier": 2.0},
    (1.4, 1.4),
)
