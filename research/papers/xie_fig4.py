"""Xie et al. Fig. 4: attack inefficacy of UserDP-FedAvg by number of bad users."""

from collections.abc import Sequence
from typing import Any

from research.papers.xie_inefficacy import (
    BACKDOOR,
    BOUND,
    DISTRIBUTED,
    FLIPPING,
    ByAttackers,
    register_attacks,
    with_bound,
)
from research.papers.xie_levels import (
    CIFAR_USER_SETTINGS,
    TEXT_USER_SETTINGS,
    TWEETERS,
    USER_SETTINGS,
    USERS,
    BothScales,
    Level,
)
from research.study import Scale, Settings

BAD = {Scale.SMALL: (0, 2, 8), Scale.PAPER: (0, 1, 2, 3, 4, 5, 6, 8, 10)}


def _line(attack: str, gamma: float, part: float) -> dict[str, Any]:
    return {"attack": attack, "attack_options": {"gamma": gamma}, "bad_share": part}


def _lines(attacks: Sequence[str]) -> list[Settings]:
    by_share = [_line(attack, 50.0, part) for attack in attacks for part in (0.2, 1.0)]
    return by_share + [
        _line(attack, gamma, 1.0) for attack in attacks for gamma in (1.0, 100.0)
    ]


ON_IMAGES = [*_lines((BACKDOOR, FLIPPING)), _line(DISTRIBUTED, 50.0, 1.0)]
ON_TEXT = _lines((FLIPPING,))


def _register(
    name: str,
    data: str,
    lines: Sequence[Settings],
    level: Level,
    published: tuple[float, float],
    at: BothScales,
) -> None:
    trained = at[Scale.PAPER]
    register_attacks(
        name,
        ByAttackers(level, lines, BAD, published),
        at,
        figure=f"Fig. 4 ({data})",
        claim=(
            "Inefficacy falls with k, poisoning more of an attacker's records comes"
            " closer to the certified bound, and with DP the factor γ and the kind of"
            " attack hardly matter."
        ),
        does=(
            "Backdoor (BKD), distributed backdoor (DBA) and label flipping (LF) by k"
            " of all users who poison a share α of their records and scale their"
            f" updates by γ; σ = {trained['noise_multiplier']:g}, {trained['rounds']}"
            " rounds. Bounds as published (Theorem 3), and sound: exact, for users"
            " that replace their updates, from a lower bound of J(D) at 99 %."
        ),
    )


_register(
    "xie-fig4",
    "MNIST",
    ON_IMAGES,
    USERS,
    (0.4344, 0.8899),
    with_bound(
        USER_SETTINGS,
        BOUND[Scale.SMALL],
        BOUND[Scale.PAPER],
        rounds=5,
        noise_multiplier=2.5,
    ),
)
_register(
    "xie-fig4-cifar",
    "CIFAR",
    ON_IMAGES,
    USERS,
    (0.5978, 0.7846),
    with_bound(CIFAR_USER_SETTINGS, 2.0, 0.2, rounds=4, noise_multiplier=3.0),
)
_register(
    "xie-fig4-text",
    "Sent140",
    ON_TEXT,
    TWEETERS,
    (0.4102, 0.58),
    with_bound(TEXT_USER_SETTINGS, 1.4, 1.4, rounds=3, noise_multiplier=2.0),
)
