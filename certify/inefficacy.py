"""Bounds on a bounded expectation after an attack: losses and attack inefficacy, both signs.

B·lower_k(J/B) ≤ J' ≤ B·upper_k(J/B) for J in [0, B] (Xie Thm 3, PRECAD Thm 2); the
mirror image for J in [−B, 0]. And the fewest attackers who can push J' down to a given
level (Xie Cor. 1).
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from precad.accounting.exact import largest_count
from precad.certify.guarantee import (
    BOTH,
    LARGEST_GROUP,
    Direction,
    Floats,
    Guarantee,
    probabilities,
    require_guarantee,
)
from precad.certify.intervals import ScoreBound, mean_half_width
from precad.certify.prediction import COLOURS, picture
from precad.common.checks import count, positive
from precad.common.errors import Misconfiguration


@dataclass(frozen=True, slots=True)
class ScoreBounds:
    """J' lies in [lower, upper] after the change; arrays of J's shape."""

    lower: Floats
    upper: Floats


def _scaled(value: npt.ArrayLike, bound: float, *, negative: bool) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    array = (-array if negative else array) / positive("bound", bound)
    return probabilities("expectation / bound", array)


def attack_bounds(
    value: npt.ArrayLike,
    bound: float,
    guarantee: Guarantee,
    k: int,
    directions: tuple[Direction, ...] = BOTH,
    *,
    negative: bool = False,
) -> ScoreBounds:
    """What an expectation J can become after k additions or k deletions, the worse of those asked.

    ``value`` lies in [0, bound], or in [−bound, 0] where ``negative`` (Xie Thm 3's
    second case). Raises Misconfiguration: J outside its range, NaN, a reproduction for
    a guarantee.
    """
    require_guarantee(guarantee)
    p = _scaled(value, bound, negative=negative)
    curves = [guarantee.curves(count("k", k), direction) for direction in directions]
    lower = bound * np.min([curve.lower(p) for curve in curves], axis=0)
    upper = bound * np.max([curve.upper(p) for curve in curves], axis=0)
    return ScoreBounds(-upper, -lower) if negative else ScoreBounds(lower, upper)


def fewest_attackers(
    *,
    value: float,
    bound: float,
    ratio: float,
    guarantee: Guarantee,
    directions: tuple[Direction, ...] = BOTH,
    negative: bool = False,
    limit: int = LARGEST_GROUP,
) -> int | None:
    """The least k for which the bounds don't exclude J' ≤ J/τ (or J' ≤ τJ where ``negative``).

    ``ratio`` is τ ≥ 1; for the rest see ``attack_bounds``. None where the goal is
    excluded for every k up to ``limit``, or lies outside the range.
    """
    require_guarantee(guarantee)
    if not ratio >= 1:
        raise Misconfiguration("tau", ratio, "give a ratio of at least 1")
    p = float(_scaled(value, bound, negative=negative))
    goal = p * ratio if negative else p / ratio
    if goal > 1:
        return None
    if ratio == 1 or p == 0:
        return 0

    def out_of_reach(k: int) -> bool:
        curves = [guarantee.curves(k, direction) for direction in directions]
        if negative:
            return all(bool(curve.upper(p) < goal) for curve in curves)
        return all(bool(curve.lower(p) > goal) for curve in curves)

    # Some goals no number of attackers reaches: a score of 1 keeps its null sets.
    if out_of_reach(limit):
        return None
    return largest_count(out_of_reach, limit) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanInterval:
    """An expectation estimated from independent runs, with a bound on either side."""

    mean: float
    lower: float
    upper: float
    runs: int


def expected_loss(
    losses: npt.ArrayLike,
    *,
    bound: float,
    confidence: float,
    how: ScoreBound = ScoreBound.HOEFFDING,
) -> MeanInterval:
    """J from losses in [0, bound], both bounds together at ``confidence``.

    ``losses`` are [runs], or [runs, points] of which each run's mean counts. Raises
    Misconfiguration: wrong shape, NaN, a loss outside [0, bound].
    """
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim not in (1, 2) or not array.size:
        raise Misconfiguration(
            "losses", f"shape {array.shape}", "give [runs] or [runs, points]"
        )
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= bound):
        raise Misconfiguration(
            "losses", "NaN or out of range", f"losses lie in [0, {bound:g}]"
        )
    scaled = _scaled(array.reshape(len(array), -1).mean(axis=1), bound, negative=False)
    width = float(mean_half_width(scaled, (1 - confidence) / 2, how))
    mean = float(scaled.mean())
    low = max(0.0, mean - width)
    high = min(1.0, mean + width)
    return MeanInterval(
        mean=bound * mean,
        lower=bound * low,
        upper=bound * high,
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
    """The band in which the expected loss stays, by number of attackers; [n] float64 each."""
    title = f"What so many attackers can do to an expected loss of {expected:.3g}"
    x = f"attackers: {unit} added or deleted"
    with picture(
        path,
        title=title,
        x=x,
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
            expected, color="#444444", linewidth=1, linestyle=":", label="clean"
        )
        axes.set_ylim(bottom=0)
