"""Xie et al. Fig.

7 and 12: inefficacy of UserDP-FedAvg by ε, and the fewest attackers.
"""

from collections.abc import Sequence

from research.papers.xie_inefficacy import (
    BACKDOOR,
    BOUND,
    FLIPPING,
    ByEpsilon,
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
)
from research.papers.xie_table6 import PUBLISHED as ON_TWEETS
from research.study import Scale, Settings

PUBLISHED = {
    1.3: (1.2716, 0.9950),
    1.6: (0.8794, 0.9906),
    1.9: (0.6608, 0.9652),
    2.2: (0.5249, 0.9339),
    2.5: (0.4344, 0.8899),
}
"""ε after five rounds at δ = 0.0029, and accuracy, by σ (Xie et al. App. B.1.2)."""
ON_CIFAR = {
    1.5: (1.6, 0.8559),
    1.8: (1.2127, 0.8452),
    2.0: (1.0395, 0.8323),
    2.3: (0.8530, 0.8190),
    2.5: (0.7616, 0.8127),
    2.8: (0.6543, 0.7923),
    3.0: (0.5978, 0.7846),
}
"""The same after four rounds on CIFAR."""
BAD = (0, 2, 8)
RATIOS = (1.5, 2.0, 4.0)


def _lines(*attacks: str) -> Sequence[Settings]:
    return [
        {"attack": attack, "attack_options": {"gamma": 50.0}, "bad_share": 1.0}
        for attack in attacks
    ]


def _register(name: str, figure: str, by: ByEpsilon, at: BothScales) -> None:
    register_attacks(
        name,
        by,
        at,
        figure=figure,
        claim=(
            "With stronger privacy both measured and certified inefficacy are higher,"
            " and more attackers are needed for the same effect."
        ),
        does=(
            "Attacks by k of all users, with all their records and γ = 50, by noise"
            f" level, {at[Scale.PAPER]['rounds']} rounds; the least k that may bring J"
            " down to J(D)/τ by Corollary 1 and soundly."
        ),
    )


_register(
    "xie-fig7",
    "Fig. 7, Fig. 12 (MNIST)",
    ByEpsilon(
        USERS, _lines(FLIPPING, BACKDOOR), BAD, PUBLISHED, (1.3, 1.9, 2.5), RATIOS
    ),
    with_bound(USER_SETTINGS, BOUND[Scale.SMALL], BOUND[Scale.PAPER], rounds=5),
)
_register(
    "xie-fig7-cifar",
    "Fig. 7, Fig. 12 (CIFAR)",
    ByEpsilon(
        USERS, _lines(FLIPPING, BACKDOOR), BAD, ON_CIFAR, (1.5, 2.3, 3.0), RATIOS
    ),
    with_bound(CIFAR_USER_SETTINGS, 2.0, 0.2, rounds=4),
)
_register(
    "xie-fig7-text",
    "Fig. 7 (Sent140)",
    ByEpsilon(TWEETERS, _lines(FLIPPING), BAD, ON_TWEETS, (1.0, 2.0, 3.0), RATIOS),
    with_bound(TEXT_USER_SETTINGS, 1.4, 1.4, rounds=3),
)
