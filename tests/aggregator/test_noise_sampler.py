"""The noise's sampler: its table and decisions exactly, its draws by tests that mutants
fail."""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast
from unittest.mock import Mock

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rig.noise_fit import Bins, Tally

from precad.aggregator import noise
from precad.aggregator.noise import (
    COLUMN_BITS,
    COLUMNS,
    Blocks,
    DiscreteGaussian,
    DrawnAhead,
)
from precad.common.identifiers import Secret
from precad.common.mechanism import NOISE_DEVIATIONS
from precad.common.ring import Keystream, RingVector
from precad.common.task import SUM_LIMIT

SAMPLES = 400_000
# Streams are seeded: a right sampler passes always or never.
LEAST_P = 1e-5
DEVIATIONS = [
    0.5,
    0.7,
    1.0,
    3.3,
    7.99,
    8.0,
    20.5,
    1024.0,
    131_072.3,
    2.0**40,
    1.9 * 2.0**57,
]
TOTAL = 2**64


def seeded(name: bytes = b"noise") -> Callable[[], Keystream]:
    return lambda: Keystream(Secret(bytes(32)), "test", name)


def scripted(*words: int) -> Keystream:
    left = list(words)
    pop = partial(left.pop, 0)
    stream = SimpleNamespace(
        words=lambda n: np.array([pop() for _ in range(n)], "u8").view("i8")
    )
    return cast("Keystream", stream)


def unfit(sampler: DiscreteGaussian, deviation: float) -> dict[str, float]:
    bins, tally = Bins.of(deviation), Tally(deviation)
    tally.add(sampler.draw(SAMPLES), bins)
    assert sum(tally.bins) == SAMPLES
    return {name: p for name, p in tally.p_values(bins).items() if not p >= LEAST_P}


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(80):
        yield


@pytest.mark.parametrize("wrong", [0.0, 0.499, -3.0, 2.0**58, math.inf, math.nan])
def test_a_deviation_out_of_range_is_refused(
    wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="from 1/2 to below 2"):
        DiscreteGaussian(wrong)
    # So is a table that reaches less far; and every task that has room in the ring has
    # a sampler.
    narrow = Blocks.of(1000.0)
    monkeypatch.setattr(Blocks, "of", staticmethod(lambda _: narrow))
    with pytest.raises(ValueError, match=r"noise_units is 9000\.0.*reaches less"):
        DiscreteGaussian(9000.0)
    assert SUM_LIMIT / (2 * NOISE_DEVIATIONS) < noise.LIMIT


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_what_is_drawn_fits_the_discrete_gaussian(deviation: float) -> None:
    assert unfit(DiscreteGaussian(deviation, seeded()), deviation) == {}


@pytest.mark.parametrize("deviation", [0.7, 20.5, 1024.0])
def test_deciding_exactly_is_the_same(
    deviation: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float64 path against decimals, proposal by proposal."""
    usual = DiscreteGaussian(deviation, seeded()).draw(2_000)
    monkeypatch.setattr(noise, "MARGIN", 2.0)
    assert np.array_equal(DiscreteGaussian(deviation, seeded()).draw(2_000), usual)


def decided(
    sampler: DiscreteGaussian,
    deviation: float,
    block: int,
    inside: int,
    beyond: int,
    words: int = 1,
) -> list[int]:
    """What comes of these with a plus where U is so far beyond the edge, in its last
    place."""
    blocks = Blocks.of(deviation)
    y = (block << blocks.width_bits) + inside
    weight = mpmath.exp(-(mpmath.mpf(y) ** 2) / (2 * mpmath.mpf(deviation) ** 2))
    edge = int(blocks.scale * weight / blocks.masses[block] * TOTAL**words)
    chance = divmod(edge, TOTAL) if words == 2 else (edge,)
    assert blocks.thresholds[block] > 0
    read = scripted(block, inside, *chance[:-1], chance[-1] + beyond)
    accepted: list[int] = sampler._accepted(read, 1).tolist()
    assert accepted in ([], [y])
    return accepted


@pytest.mark.parametrize("deviation", [20.5, 1024.0, 131_072.3, 2.0**40])
@pytest.mark.parametrize(("block", "place"), [(0, 0.9), (3, 0.5), (17, 0.99)])
@pytest.mark.parametrize("beyond", [-1, 1])
def test_a_decision_is_right_in_the_last_of_its_64_bits_and_of_the_next(
    deviation: float, block: int, place: float, beyond: int
) -> None:
    """float64 can't tell these apart: one unit of U's last place below the edge, and
    above."""
    sampler = DiscreteGaussian(deviation)
    inside = int(place * (1 << Blocks.of(deviation).width_bits))
    for words in (1, 2):
        # Where 64 bits leave it open the next 64 decide.
        assert bool(decided(sampler, deviation, block, inside, beyond, words)) == (
            beyond < 0
        )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gap *= magnitude + begin", "gap *= magnitude + begin + 1"),
        ("np.abs(gap) <= MARGIN", "np.abs(gap) < 0"),
        ("chance + 1 <= bound - error", "chance - 1 <= bound - error"),
        ("Decimal(1 << bits) /", "Decimal((1 << bits) - 8) /"),
    ],
)
def test_an_error_that_no_statistic_sees_is_caught_at_the_edge(
    old: str, new: str
) -> None:
    broken = mutant(old, new)(131_072.3)
    found = [bool(decided(broken, 131_072.3, 5, 9_000, beyond)) for beyond in (-1, 1)]
    assert found != [True, False]


def test_zero_with_a_minus_is_refused() -> None:
    sampler = DiscreteGaussian(1024.0)
    for word, accepted in ((0, [0]), (1 << 63, []), (1 << 63 | 1, [-1])):
        assert sampler._accepted(scripted(0, word, 0), 1).tolist() == accepted


SOURCE = Path(noise.__file__).read_text(encoding="utf-8")


def mutant(old: str, new: str) -> type[DiscreteGaussian]:
    assert SOURCE.count(old) == 1, f"{old!r} isn't in the source once"
    sampler = ModuleType("mutant_sampler")
    vars(sampler)["__name__"] = noise.__name__
    exec(SOURCE.replace(old, new), vars(sampler))
    return cast("type[DiscreteGaussian]", sampler.DiscreteGaussian)


@pytest.mark.parametrize(
    ("deviation", "old", "new"),
    [
        (20.5, "(magnitude - begin).astype", "(magnitude - begin + 1).astype"),
        (1024.0, "Booleans = gap > 0", "Booleans = gap > -1"),
        (1024.0, "Booleans = gap > 0", "Booleans = gap > -0.1"),
        (20.5, "(magnitude | ~minus) != 0", "(magnitude | 1) != 0"),
        (20.5, "(magnitude ^ minus) - minus", "magnitude ^ minus"),
        (1024.0, "(magnitude ^ minus) - minus", "magnitude"),
        (1024.0, "-0.5 / self.noise_units**2", "-1.0 / self.noise_units**2"),
        (1024.0, "gap *= blocks.tightness[block]", "gap *= blocks.tightness[column]"),
        (1024.0, "pick >> np.uint64(8) <", "pick >> np.uint64(9) <"),
        (1024.0, "(1 << width_bits) - 1)", "(1 << width_bits) - 2)"),
        (1024.0, "block = np.where(is_own_block, column, blocks.others[column])",
         "block = column"),
        (1024.0, "blocks.others[column])", "blocks.others[column] ^ 1)"),
        (1024.0, "(-Decimal(magnitude) * magnitude", "(-Decimal(magnitude)"),
        (1024.0, "(2 * s * s)", "(s * s)"),
        (1024.0, "thresholds[column] = remaining[column]",
         "thresholds[column] = masses[column] // 2"),
    ],
)  # fmt: skip
def test_a_broken_sampler_is_caught(deviation: float, old: str, new: str) -> None:
    broken = mutant(old, new)(deviation, seeded())
    assert unfit(broken, deviation) != {}


@pytest.mark.parametrize(
    "dimension", [0, 1, 2, 100, noise.CHUNK - 1, 3 * noise.CHUNK + 7]
)
def test_as_many_are_drawn_as_are_asked_for(dimension: int) -> None:
    drawn = DiscreteGaussian(1024.0).draw(dimension)
    assert (drawn.shape, drawn.dtype.name, drawn.flags.writeable) == (
        (dimension,),
        "int64",
        True,
    )


def test_each_call_has_a_key_of_its_own() -> None:
    sampler = DiscreteGaussian(2.0**40)
    assert not np.intersect1d(sampler.draw(1000), sampler.draw(1000)).size
    one, other = (noise.fresh_stream().words(4) for _ in range(2))
    assert not np.intersect1d(one, other).size


def test_threads_share_a_sampler() -> None:
    """The same as one after the other: nothing of a call is kept in the sampler."""
    names, stream = [b"0", b"1", b"2", b"3"], threading.local()
    # Named by the thread, when it calls.
    sampler = DiscreteGaussian(1024.0, lambda: seeded(stream.name)())  # noqa: PLW0108
    together = threading.Barrier(len(names))

    def draw(name: bytes) -> RingVector:
        stream.name = name
        together.wait()
        return sampler.draw(100_000)

    with ThreadPoolExecutor(len(names)) as threads:
        for name, drawn in zip(names, threads.map(draw, names), strict=True):
            alone = DiscreteGaussian(1024.0, seeded(name)).draw(100_000)
            assert np.array_equal(drawn, alone)


def test_it_is_drawn_before_anybody_asks_and_given_out_once() -> None:
    begun, let = threading.Event(), threading.Event()

    def draw(dimension: int) -> RingVector:
        begun.set()
        assert let.wait(60)
        if dimension == 4:
            raise OSError("no entropy")
        return np.arange(dimension, dtype=np.int64)

    source = Mock(draw=Mock(side_effect=draw))
    ahead, broken = DrawnAhead(source, 5), DrawnAhead(source, 4)
    assert begun.wait(60)
    let.set()
    assert ahead.draw(5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="used once"):
        ahead.draw(5)
    # What the source raises is raised where the noise is asked for.
    with pytest.raises(OSError, match="no entropy"):
        broken.draw(4)
    assert sorted(call.args for call in source.draw.call_args_list) == [(4,), (5,)]
    with pytest.raises(RuntimeError, match="noise for 5 words"):
        DrawnAhead(source, 5).draw(6)


deviations = st.floats(noise.LEAST, noise.LIMIT, exclude_max=True) | st.floats(
    math.log(noise.LEAST), math.log(noise.LIMIT) - 1e-9
).map(math.exp)


@given(deviations)
@example(0.5)
@example(1.9 * 2.0**57)
@settings(max_examples=25)
def test_every_table_has_its_masses_and_reaches_as_far_as_is_stated(
    deviation: float,
) -> None:
    blocks, picked, s = Blocks.of(deviation), [0] * COLUMNS, mpmath.mpf(deviation)
    for column, other in enumerate(blocks.others.tolist()):
        threshold = int(blocks.thresholds[column])
        assert 0 <= threshold <= 1 << COLUMN_BITS
        picked[column] += threshold
        picked[other] += (1 << COLUMN_BITS) - threshold
    assert (tuple(picked), sum(picked)) == (blocks.masses, COLUMNS << COLUMN_BITS)
    assert (blocks.tightness <= 1).all()
    for q, mass in enumerate(blocks.masses):
        largest = blocks.scale * mpmath.exp(
            -((q << blocks.width_bits) ** 2) / (2 * s * s)
        )
        assert largest <= mass
        # Not much larger either: proposals would be refused in vain.
        assert mass - largest <= (1 if q else 1000)
        assert float(largest / mass) == pytest.approx(
            float(blocks.tightness[q]), rel=1e-15
        )
    # Blocks are as wide as they may be, reach far enough, and their integers fit a
    # word.
    end = COLUMNS << blocks.width_bits
    assert 1 << blocks.width_bits <= max(1, deviation / 8)
    assert noise.REACH * deviation <= end <= 2 * noise.REACH * max(8, deviation)
    assert 2 * end <= 2**63
    # 10^6 coordinates in 10^6 rounds: far below any δ.
    assert (
        2 * mpmath.exp(-(mpmath.mpf(end) ** 2) / (2 * s * s))
        <= noise.TAIL
        < 2.0**-143 / 10**12
    )


@given(deviations.filter(lambda s: s > 3), st.binary(min_size=32, max_size=32))
@settings(max_examples=25)
def test_noise_of_any_deviation_has_it(deviation: float, key: bytes) -> None:
    drawn = DiscreteGaussian(deviation, lambda: Keystream(Secret(key), "test")).draw(
        20_000
    )
    assert np.abs(drawn).max() < 7 * deviation
    bins, tally = Bins.of(deviation), Tally(deviation)
    tally.add(drawn, bins)
    # Keys are hypothesis's, of which it tries many.
    assert min(tally.p_values(bins).values()) > 1e-9
