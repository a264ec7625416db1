"""Numbers of a task by rules: q, p, C, η where nobody chose them, classes' weights.

Whole tasks come within 2 points of the best of a grid by them, in nine of ten:
benchmarks/results/default_settings.json.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import TypeVar

from precad.cli import Wishes
from precad.common import WORD_BYTES, Misconfiguration, level_text, most_records

Value = TypeVar("Value")

_LEAST_RATE = 0.05
"""p where nobody chose it, at least."""
AMPLIFIED = 1.25
"""σ below which sampling fewer records costs accuracy: there p is raised.

To first order T rounds at rate p are one Gaussian release with μ = p·√(T·(exp(1/s²) −
1)), where s = σ/√2 is the noise of one server (Bu et al., 2020). The noise of a round's
mean, a multiple of s/p, is then √((exp(1/s²) − 1)·s²) times the least that any p gives
for this ε and T, that of p = 1: 1.02 times at σ = 4.6, 1.4 at 1.25, 3.8 at .7. So a
large ε in few rounds wants more records a round than p = .05 samples. Each costs time:
p is the least, in steps of a half, at which σ is 1.25 or more."""
_ROUND_S = 60.0
"""Seconds that a round may take, by ``round_seconds``, where nobody chose q."""
MOVES = {"classes": 0.3, "classes, hidden layers": 0.2, "regression": 0.07}
"""How far the noise alone moves a weight over the whole training, by what is learnt.
These numbers, and those of C below, are the best of a comparison:
benchmarks/results/default_settings.json."""

WARM_STEP = 0.1
"""Of the usual η, for a model that has learnt already: a training from zero begins far
off, and such a model would lose by the noise what it has."""


def default_rate(largest: int) -> float:
    """Return the least p where nobody chose it, for the largest owner's records.

    A task whose σ is below ``AMPLIFIED`` with it has a larger one. It samples one
    record a round on average; p is at least .05. An owner that samples nothing in most
    rounds weighs less than a bad owner, who sends C in each.
    """
    return max(_LEAST_RATE, rounded(1 / largest, digits=2, up=True))


def round_seconds(uploads: float, dimension: int) -> float:
    """Return about how long a round of so many uploads of d numbers takes.

    It is for servers of two cores with 100 Mbit/s and 20 ms between all: within a
    factor of two of benchmarks/results/checks.json.
    """
    on_the_line = WORD_BYTES / 12.5e6
    return 1.0 + uploads * (0.013 + dimension * (1e-7 + on_the_line))


def cohort_rate(owners: int, dimension: int) -> float:
    """Return q where nobody chose it: 1, unless a round would take over a minute.

    Against a curious server, which sees who takes part, q amplifies nothing, and fewer
    records a round leave more noise. A minute is what owners have to upload unless the
    task says otherwise (``deadlines.collect``).
    """
    fitting = _ROUND_S / round_seconds(owners, dimension)
    return min(1.0, rounded(fitting, digits=2, up=False))


def default_clip(record_clip: float, largest: int, record_rate: float) -> float:
    """Return C where nobody chose it: R·1.5·√(p·|D|) of the largest owner.

    C is at least 2·R, and never more than an owner can sample, times R: beyond that it
    arms attackers alone. A sum of n gradients rarely is longer than a few √n; one that
    is keeps its direction.
    """
    ratio = max(2.0, 1.5 * math.sqrt(record_rate * largest))
    ratio = min(ratio, most_records(largest, record_rate))
    return rounded(record_clip * ratio, digits=2, up=False)


def default_step(
    *,
    expected_records: float,
    record_rate: float,
    noise_multiplier: float,
    rounds: int,
    record_clip: float,
    kind: str,
) -> float:
    """Return η where nobody chose it: noise moves a weight by ``MOVES[kind]`` in all.

    T rounds of both servers' noise over the S = q·p·N records that are expected, by
    which the sum is divided, are a walk of η·R·σ·√(2T)/S. η·R is at most √S/2, so that
    a step doesn't overshoot by the chance of which records are sampled; of p > .05 it
    is that of p = .05, as the loss bends as much whatever is sampled.
    """
    walk = noise_multiplier * math.sqrt(2 * rounds) / expected_records
    steady = expected_records * min(1.0, _LEAST_RATE / record_rate)
    step = min(math.sqrt(steady) / 2, MOVES[kind] / walk)
    return rounded(step / record_clip, digits=2)


def rounded(value: float, digits: int = 4, *, up: bool | None = None) -> float:
    """Return ``value`` > 0 to so many digits: rounded up, down, or to the nearest."""
    exponent = math.floor(math.log10(value)) - digits + 1
    scaled = value / 10.0**exponent
    # A value that already is such a number, but for floating point, stays.
    if up is None or abs(scaled - round(scaled)) < 1e-9:
        whole = round(scaled)
    else:
        whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(f"{whole}e{exponent}")


def given(value: Value | None, default: Value) -> Value:
    """Return the value, or the default where none is given."""
    return default if value is None else value


def class_weights(
    balance: str, levels: Sequence[str], classes: int | None
) -> list[float]:
    """Return what each class's loss is multiplied by: least share/share, so 1 at most.

    ``balance`` has the classes' shares, in the order of ``levels`` or of the labels 0,
    1, …, or by name; or the classes' counts, whole numbers. Raises Misconfiguration: it
    hasn't one above 0 for each, or shares don't sum to 1, but for rounding.
    """
    parts = balance.split(",")
    names = [level_text(level) for level in levels]
    names = names or [str(label) for label in range(classes or len(parts))]
    shares = {}
    for name, part in zip_longest(names, parts, fillvalue=""):
        own_name, _, share = part.rpartition("=")
        with suppress(ValueError):
            shares[level_text(own_name) or name] = float(share)
    given_shares = shares.values()
    usable = all(0 < share < math.inf for share in given_shares)
    if len(parts) < 2 or shares.keys() != set(names) or not usable:
        raise Misconfiguration(
            "balance",
            balance,
            "give the share of each class, above 0, like .9,.1, or by its name, like"
            f" {names[0]}=.9; the classes are {', '.join(names)}",
        )
    total = sum(given_shares)
    counted = all(share.is_integer() for share in given_shares)
    if not counted and abs(total - 1) > 0.005 * len(shares):  # two decimals each
        raise Misconfiguration(
            "balance",
            balance,
            f"sums to {total:g}: give shares that sum to 1, or counts like 900,100",
        )
    least = min(given_shares)
    return [rounded(least / shares[name]) for name in names]


def for_whole_owners(wishes: Wishes) -> Wishes:
    """Return the wishes with what suits whole owners where nothing is said.

    All an owner's records are one unit, in every round: one server sees who is drawn,
    so that nothing amplifies.
    """
    clip = given(wishes.client_clip, given(wishes.record_clip, 1.0))
    return replace(
        wishes,
        rounds=given(wishes.rounds, 100),
        record_rate=given(wishes.record_rate, 1.0),
        client_rate=given(wishes.client_rate, 1.0),
        record_clip=given(wishes.record_clip, clip),
        client_clip=clip,
    )
