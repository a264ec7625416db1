"""Questions: what a record adds is held to its norm, and intervals cover."""

import math
from pathlib import Path

import numpy as np
import pytest
from research.questions.evidence import coverage
from research.questions.evidence.coverage import Questions
from research.questions.evidence.pieces import Evidence, run
from research.questions.interval import deviations
from research.questions.messy import WARDS, patients
from research.questions.moments import Moments
from research.questions.one_hot import OneHot, codes_of_levels
from research.questions.prefix_sums import PrefixDecoder, PrefixSums
from research.questions.ratio import Spread, fieller
from research.questions.release import Release, bits_of, noise_multiplier
from research.questions.split import Split, shares_of


@pytest.fixture
def asked() -> Questions:
    table = patients(300, np.random.default_rng(5))
    return Questions(table=table, epsilon=1.0)


def test_a_records_integers_stay_within_its_norm_without_a_cut(
    asked: Questions,
) -> None:
    wards, ages, pressure, stay = asked.release.blocks
    units = asked.release.units
    assert isinstance(pressure, Moments)
    assert isinstance(stay, PrefixSums)
    vectors = [
        np.eye(wards.dimension, dtype=np.int64)[asked.codes[0]] * units[0],
        np.eye(ages.dimension, dtype=np.int64)[asked.codes[1]] * units[1],
        np.rint(pressure.vectors(asked.table.pressure) * units[2]).astype(np.int64),
        stay.vectors(asked.codes[2], int(units[3])),
    ]
    for total, vector in zip(asked.totals, vectors, strict=True):
        assert (vector.sum(0) == total).all()
    squares = (np.concatenate(vectors, axis=1) ** 2).sum(1)
    most = 4**asked.release.bits
    assert squares.max() <= most
    # Hardly any of the norm is left for rounding.
    assert math.sqrt(squares.max() / most) > 0.99


def test_shares_of_the_norm_make_least_what_they_say() -> None:
    norms, weights = [1.0, 1.7, 1.0], [1.0, 1.0, 20.0]
    needs = np.multiply(norms, weights)
    best = {split: needs / shares_of(norms, weights, split) for split in Split}
    generator = np.random.default_rng(2)
    for _ in range(200):
        other = np.abs(generator.normal(size=3))
        errors = needs / (other / np.linalg.norm(other))
        assert (errors**2).sum() >= (best[Split.SQUARES] ** 2).sum() - 1e-9
        assert errors.max() >= best[Split.EQUAL].max() - 1e-9


def test_a_prefix_sum_of_1024_bins_has_three_times_the_noise() -> None:
    block = PrefixSums(bins=1024)
    decoder = PrefixDecoder(1024, 2**40)
    free = math.sqrt(np.diag(decoder.free_covariance).mean()) * block.norm
    known = math.sqrt(np.diag(decoder.covariance).mean()) * block.norm
    assert (round(free, 2), round(known, 2)) == (3.11, 3.02)


def test_prefix_sums_are_exact_however_coarse_the_rounding_of_their_matrix() -> None:
    block = PrefixSums(bins=200)
    codes = np.random.default_rng(1).integers(0, 200, 50_000)
    for unit in (17, 300):
        released = block.total(codes, unit)[None, :] / unit
        found = block.decoder(unit).prefixes(released, 50_000)
        assert np.allclose(found[0], np.cumsum(np.bincount(codes)), atol=1e-4)


def test_the_servers_own_noise_gives_what_the_stand_in_gives(asked: Questions) -> None:
    exact = asked.release.drawn_exactly(asked.totals, 300)
    for released, total, unit, noise in zip(
        exact, asked.totals, asked.release.units, asked.release.noise, strict=True
    ):
        standard = (released - total / unit) / noise
        count = standard.size
        assert abs(standard.mean()) < 5 / math.sqrt(count)
        assert abs(standard.std() - 1) < 5 / math.sqrt(2 * count)


def test_too_many_sums_for_the_bits_are_refused_with_what_fits() -> None:
    with pytest.raises(ValueError, match="1024 fit"):
        Release(blocks=[OneHot(cells=1025)], sigma=1.0, bits=7)
    assert bits_of(120_000) == 8


def test_one_servers_multiplier_is_the_least_for_its_epsilon() -> None:
    assert noise_multiplier(1.0, 1e-5) == pytest.approx(3.731, abs=5e-4)
    assert noise_multiplier(0.5, 1e-5) == pytest.approx(7.032, abs=5e-4)


def test_unlisted_levels_and_missing_texts_have_cells_of_their_own() -> None:
    texts = np.array(["Surgery ", None, "unit 7b", "-", math.nan, ""], dtype=object)
    other, missing = len(WARDS), len(WARDS) + 1
    codes = codes_of_levels(texts, WARDS)
    assert codes.tolist() == [0, missing, other, missing, missing, missing]


def test_a_ratio_to_what_may_be_zero_has_its_whole_range() -> None:
    spread = Spread(top=1.0, bottom=1.0)
    tops, bottoms = np.array([1.0, 50.0]), np.array([1.5, 100.0])
    found = fieller(tops, bottoms, spread, z=deviations(), within=(0.0, 1.0))
    assert (found.low[0], found.high[0]) == (0.0, 1.0)
    assert 0.45 < found.low[1] < 0.5 < found.high[1] < 0.55


def test_intervals_cover_the_pooled_answer_alone_and_together() -> None:
    found = coverage.measure(records=3000, epsilon=1.0, draws=1000, seed=4)
    covered = found["covered"]
    # Of 1,000 draws: 95 % less four deviations.
    for name, shares in covered.items():
        assert min(shares) > 0.92, name
    assert max(covered["wards"]) < 0.98
    assert found["together"] > 0.92


def test_evidence_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    measured: list[int] = []

    def measure(*, number: int, draws: int) -> dict[str, int]:
        measured.append(number)
        return {"square": number**2 + 0 * draws}

    pieces = tuple({"number": number, "draws": 9} for number in range(3))
    evidence = Evidence(claim="squares", measure=measure, pieces=pieces)
    path = tmp_path / "squares.json"
    first = iter(run(evidence, path))
    next(first)
    assert [piece["values"]["square"] for piece in run(evidence, path)] == [0, 1, 4]
    assert measured == [0, 1, 2]
