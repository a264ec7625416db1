"""Bounds on a bounded expectation after an attack: a loss, or the attack's inefficacy.

With either sign: B·lower_k(J/B) ≤ J' ≤ B·upper_k(J/B) for J in [0, B] (Xie Thm 3,
PRECAD Thm 2), and the mirror image for J in [−B, 0]. And the fewest attackers who can
push J' down to a given level (Xie Cor. 1).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from precad.accounting import largest_count
from precad.certify import (
    BOTH,
    COLOURS,
    LARGEST_GROUP,
    Direction,
    Guarantee,
    ScoreBound,
    mean_half_width,
    picture,
    probabilities,
    require_guarantee,
)
from precad.common import (
    Floats,
    Misconfiguration,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.checks import positive


@frozen_dataclass
class ScoreBounds:
    """Bounds on J' after the change, of J's shape: it lies in [lower, upper]."""

    lower: Floats
    upper: Floats


def _scaled(value: npt.ArrayLike, bound: float) -> Floats:
    """Return J/B, in J's shape.

    Raises Misconfiguration: it isn't in [0, 1].
    """
    array = np.asarray(value, np.float64)
    return probabilities("loss / bound", array / positive("bound", bound))


def attack_bounds(
    value: npt.ArrayLike,
    bound: float,
    guarantee: Guarantee,
    k: int,
    directions: tuple[Direction, ...] = BOTH,
) -> ScoreBounds:
    """Return what an expectation J can become after k additions or k deletions.

    That is the worse of those asked. Raises Misconfiguration: J outside its range, NaN,
    a reproduction for a guarantee.

    Args:
        value: J, of any shape, in [0, bound]. Of a J in [−bound, 0], Xie Thm 3's
            second case, −J has the same bounds with the other sign.
        bound: B, above 0.
        guarantee: What the mechanism promises.
        k: How many records or clients were added or deleted.
        directions: What the attackers may have done.
    """
    require_guarantee(guarantee)
    p = _scaled(value, bound)
    curves = [guarantee.curves(k, direction) for direction in directions]
    lower = bound * np.min([curve.lower(p) for curve in curves], axis=0)
    upper = bound * np.max([curve.upper(p) for curve in curves], axis=0)
    return ScoreBounds(lower=lower, upper=upper)


def fewest_attackers(
    *,
    value: float,
    bound: float,
    ratio: float,
    guarantee: Guarantee,
    directions: tuple[Direction, ...] = BOTH,
    limit: int = LARGEST_GROUP,
) -> int | None:
    """Return the least k for which the bounds don't exclude that J' reaches a goal.

    The goal is J' ≤ J/τ. ``ratio`` is τ ≥ 1; for the other arguments see
    ``attack_bounds``. None where the goal is excluded for every k up to ``limit``.
    Raises Misconfiguration: as ``attack_bounds``, or τ below 1.
    """
    if not ratio >= 1:
        raise Misconfiguration("tau", ratio, "give a ratio of at least 1")

    def out_of_reach(k: int) -> bool:
        bounds = attack_bounds(value, bound, guarantee, k, directions)
        return bool(bounds.lower > value / ratio)

    if not out_of_reach(0):
        return 0
    # Some goals no number of attackers reaches: a score of 1 keeps its null sets.
    if out_of_reach(limit):
        return None
    return largest_count(out_of_reach, limit) + 1


@frozen_kw_only_dataclass
class MeanInterval:
    """An expectation estimated from independent runs, with a bound on either side."""

    mean: float
    lower: float
    upper: float
    runs: int
    """How many runs there were."""


def expected_loss(
    losses: npt.ArrayLike,
    *,
    bound: float,
    confidence: float,
    how: ScoreBound,
) -> MeanInterval:
    """Estimate J from losses in [0, bound], both bounds together at ``confidence``.

    ``losses`` are [runs], or [runs, points] of which each run's mean counts. ``how``
    names the inequality. Raises Misconfiguration: wrong shape, NaN, a loss outside [0,
    bound].
    """
    array = np.asarray(losses, np.float64)
    if array.ndim not in (1, 2) or not array.size:
        raise Misconfiguration(
            "losses", f"shape {array.shape}", "give [runs] or [runs, points]"
        )
    scaled = _scaled(array, bound).reshape(len(array), -1).mean(axis=1)
    width = float(mean_half_width(scaled, (1 - confidence) / 2, how))
    mean = float(scaled.mean())
    return MeanInterval(
        mean=bound * mean,
        lower=bound * max(0.0, mean - width),
        upper=bound * min(1.0, mean + width),
        runs=scaled.size,
    )


def plot_loss_bounds(
    path: Path,
    *,
    attackers: Floats,
    lower: Floats,
    upper: Floats,
    expected: float,
    unit: str,
) -> None:
    """Draw the band in which the expected loss stays, by number of attackers.

    Args:
        path: Where the picture is written; its suffix chooses the format.
        attackers: Numbers of attackers, [n] float64, increasing.
        lower: The least that the expected loss becomes, [n] float64.
        upper: The most that the expected loss becomes, [n] float64.
        expected: The loss without attackers.
        unit: What an attacker is, in the plural.
    """
    with picture(
        path,
        title=f"What so many attackers can do to an expected loss of {expected:.3g}",
        x=f"attackers: {unit} added or deleted",
        y="expected loss",
    ) as axes:
        axes.fill_between(
            attackers,
            lower,
            upper,
            color=COLOURS[0],
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(attackers, upper, color=COLOURS[1], label="at most")
        axes.plot(attackers, lower, color=COLOURS[0], label="at least")
        axes.axhline(
            expected,
            color="#444444",
            linewidth=1,
            linestyle=":",
            label="clean",
        )
        axes.set_ylim(bottom=0)
