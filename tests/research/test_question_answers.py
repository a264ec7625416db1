"""What a release answers of models, survival and regressions, and who can move it."""

import math
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from research.__main__ import experiments
from research.questions.block import Floats
from research.questions.evidence import (
    area,
    evaluation,
    months,
    population,
    scale,
    slopes,
)
from research.questions.evidence.claims import CLAIMS
from research.questions.evidence.two_groups import measure as two_groups
from research.questions.fit import Fit
from research.questions.forecast import epsilon_for, half_width
from research.questions.grids import codes_of_numbers, even_edges
from research.questions.grouped_moments import GroupedMoments
from research.questions.head import Head
from research.questions.influence import BadRecords, largest_owners
from research.questions.interval import Interval, deviations
from research.questions.moments import Moments
from research.questions.one_hot import OneHot, codes_by_group
from research.questions.outer_product import OuterProduct
from research.questions.prefix_sums import PrefixDecoder, PrefixSums
from research.questions.quantiles import Quantiles
from research.questions.release import Release, noise_multiplier
from research.questions.scores import Scores, counts_of
from research.questions.survival import Survival
from scipy.stats import binomtest
from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

UNIT = 2**20


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_every_blocks_record_is_as_long_as_its_norm_at_most() -> None:
    draw = generator(1)
    rows = draw.normal(0, 1, (500, 4))
    rows[:50] = np.nan
    product = OuterProduct(width=4, length=1.3)
    fit = Fit(low=-1, high=1, residual=0.5)
    vectors = {
        product.norm: product.vectors(rows),
        fit.norm: fit.vectors(rows[:, 0], rows[:, 1]),
    }
    for norm, found in vectors.items():
        longest = np.linalg.norm(found, axis=1).max()
        assert 0.97 * norm < longest <= norm + 1e-12
    survival = Survival(months=24, groups=2)
    for time, event, group in ((0.0, True, 0), (0.0, False, 1), (math.nan, False, 0)):
        one = survival.total(
            np.array([time]), np.array([event]), np.array([group]), unit=UNIT
        )
        assert np.linalg.norm(one) / UNIT <= survival.norm + 1e-5
    head = Head(width=5, classes=3, length=1.2, by_class=0.7)
    one = head.total(rows[-1:, [0, 1, 2, 3, 3]] * 9, np.array([2]), UNIT)
    assert np.linalg.norm(one) / UNIT == pytest.approx(head.norm, abs=1e-5)


def test_without_noise_an_evaluation_is_the_pooled_one() -> None:
    draw = generator(2)
    classes = (draw.random(2000) < 0.3).astype(np.float64)
    score = np.clip(draw.normal(0.4 + 0.2 * classes, 0.2), 0, 1)
    score[:20] = np.nan
    there = ~np.isnan(score)
    scores = Scores(bins=200)
    codes = scores.codes(score, classes)
    found = scores.answers(scores.pooled(codes), noise=0.0, records=2000)
    exact = roc_auc_score(classes[there], score[there])
    assert found.auc(z=0).estimate[0] == pytest.approx(exact, abs=2e-3)
    right = accuracy_score(classes[there], score[there] >= 0.5)
    assert found.accuracy(100, z=0).estimate[0] == pytest.approx(right)
    assert found.confusion(100, z=0).estimate.sum() == pytest.approx(there.sum())


def test_without_noise_r_squared_is_the_pooled_one() -> None:
    draw = generator(3)
    value = draw.uniform(0, 10, 500)
    guess = value + draw.uniform(-1, 1, 500)
    fit = Fit(low=0, high=10, residual=1)
    sums = fit.vectors(value, guess).sum(0)[None, :]
    stated: dict[str, Any] = {"noise": 0.0, "records": 500, "z": 0.0}
    found = fit.r_squared(sums, **stated).estimate[0]
    assert found == pytest.approx(r2_score(value, guess))
    error = fit.mean_squared_error(sums, **stated).estimate[0]
    assert error == pytest.approx(((value - guess) ** 2).mean())


def test_without_noise_months_give_the_life_table() -> None:
    times = np.array([0.5, 0.7, 1.2, 1.9, 2.5, 3.5, math.nan])
    events = np.array([True, False, True, True, False, True, True])
    block = Survival(months=3)
    total = block.total(times, events, np.zeros(7, np.int64), unit=UNIT)
    decoder = block.decoder(UNIT)
    prefixes = decoder.prefixes(total[None, :] / UNIT, 7)
    found = decoder.curve(prefixes, noise=0.0, z=0.0).estimate[0]
    # 6 known: 1 of 6 less half a censored; 2 of 4; none of 2.
    first = 1 - 1 / 5.5
    assert found == pytest.approx([first, first / 2, first / 2])


def test_counts_are_the_nearest_that_are_not_negative() -> None:
    found = counts_of(np.array([[5.0, -3.0, 8.0]]), 10)
    assert found[0] == pytest.approx([3.5, 0, 6.5])


def test_auc_of_bad_records_is_the_boxs_extreme() -> None:
    draw = generator(4)
    cells = draw.uniform(5, 30, 8)
    bad = BadRecords(records=2, reach=2.5)
    least, most = bad.auc(cells)
    scores = Scores(bins=4)
    low, high = np.maximum(cells - bad.sum, 0), cells + bad.sum
    corners = np.where(draw.random((4000, 8)) < 0.5, low, high)
    box = np.concatenate([corners, draw.uniform(low, high, (2000, 8))])
    found = []
    for each in box:
        # The cell of "not there" makes up the whole number that is public.
        sums = np.append(each, 1000 - each.sum())[None, :]
        answers = scores.answers(sums, noise=0.0, records=1000)
        found.append(float(answers.auc(z=0).estimate[0]))
    assert least <= min(found) + 1e-9
    assert max(found) <= most + 1e-9
    # Of 256 corners, all are among those drawn.
    assert (min(found), max(found)) == pytest.approx((least, most))


def test_a_bad_owner_moves_a_sum_by_its_records_over_the_share_and_no_more() -> None:
    release = Release(blocks=[OneHot(cells=9), OneHot(cells=4)], sigma=1.0, bits=20)
    records = largest_owners([40, 100, 70], 1)
    bad = BadRecords.of(release, 0, records)
    # All of the owner's norm in one number: what both servers let pass.
    longest = records * 2**release.bits / int(release.units[0])
    assert bad.sum == longest == pytest.approx(100 * math.sqrt(2), rel=1e-5)
    cells = np.full(9, longest / 3)
    assert np.linalg.norm(cells) == pytest.approx(bad.sum)
    assert cells.sum() == pytest.approx(bad.total(9))
    assert bad.ratio(300, 1000, within=(0, 1)) == pytest.approx(
        ((300 - bad.sum) / (1000 + bad.sum), (300 + bad.sum) / (1000 - bad.sum))
    )
    assert bad.ratio(30, 100, within=(0, 1)) == (0, 1)


def test_a_head_on_features_classifies_from_one_release() -> None:
    draw = generator(6)
    centres = draw.normal(0, 1, (4, 12))
    centres -= centres.mean(0)
    classes = draw.integers(0, 4, 4000)
    features = (centres[classes] + draw.normal(0, 0.7, (4000, 12))) / 4
    head = Head(width=12, classes=4)
    sigma = noise_multiplier(1.0, 1e-5)
    release = Release(blocks=[head], sigma=sigma, bits=15)
    unit, noise = int(release.units[0]), float(release.noise[0])
    total = head.total(features[:3000], classes[:3000], unit)
    (sums,) = release.drawn([total], 1, draw)
    exact, noisy = (
        ((features[3000:] @ head.solve(each, noise=noise)).argmax(1) == classes[3000:])
        for each in (total / unit, sums[0])
    )
    assert exact.mean() > 0.9
    assert noisy.mean() > exact.mean() - 0.05


def test_small_versions_of_the_evidence_keep_their_claims() -> None:
    found = area.measure(
        records=600, positives=0.5, apart=1.2, epsilon=1.0, draws=400, seed=3
    )
    assert found["rms"] <= 0.03
    found = months.measure(records=3000, months=36, epsilon=1.0, draws=100, seed=3)
    assert found["rms"] <= 0.008
    found = slopes.measure(records=3000, length=1.5, epsilon=1.0, draws=300, seed=3)
    assert found["noise_rms"] <= 0.03
    assert found["bias_largest"] < 0.005
    found = evaluation.measure(records=3000, epsilon=1.0, draws=500, seed=3)
    for shares in found["covered"].values():
        assert min(shares) > 0.91
    found = two_groups(
        records=1000, months=12, hazard_ratio=1.0, epsilon=1.0, draws=200, seed=3
    )
    assert found["rejected"] <= 0.1
    found = scale.measure(records=3000, epsilon=0.5, draws=20, seed=3)
    assert found["columns"]["age"]["centre_error"] < 0.1


def test_intervals_of_the_population_cover_it_over_new_samples() -> None:
    found = population.measure(records=1000, epsilon=1.0, draws=200, seed=3)
    for name, shares in found["covered"].items():
        assert min(shares) > 0.89, name


def test_without_noise_shares_of_the_population_have_wilsons_interval() -> None:
    block = OneHot(cells=2)
    found = block.population_shares(
        np.array([[12.0, 88.0]]), noise=0.0, records=100, z=1.959964
    )
    wilson = binomtest(12, 100).proportion_ci(method="wilson")
    assert (found.low[0, 0], found.high[0, 0]) == pytest.approx(
        (wilson.low, wilson.high), abs=1e-6
    )


def test_what_is_asked_by_group_is_each_groups_own() -> None:
    draw = generator(8)
    values = draw.uniform(0, 10, 9000)
    values[::50] = np.nan
    groups = draw.integers(-1, 2, 9000)
    column = Moments(low=0, high=10)
    block = GroupedMoments(column=column, groups=2)
    release = Release(blocks=[block], sigma=3.7, bits=15)
    total = block.total(values, groups, int(release.units[0]))
    (sums,) = release.drawn([total], 1000, draw)
    found = block.means(sums, noise=float(release.noise[0]), z=deviations())
    truth = [np.nanmean(values[groups == group]) for group in range(2)]
    assert np.abs(found.covers(np.array(truth)).mean(0) - 0.95).max() < 0.03

    own = groups == 1
    edges = even_edges(0, 10, 100)
    prefix = PrefixSums(bins=101)
    alone = prefix.total(codes_of_numbers(values[own], edges), 2**15)
    decoder = PrefixDecoder(101, 2**15, is_total_public=False)
    quantiles = Quantiles(decoder=decoder, edges=edges, ends=(0.0, 10.0))
    noise = 5.3 * prefix.norm
    noisy = alone / 2**15 + draw.normal(0, noise, (1000, 101))
    prefixes = decoder.prefixes(noisy, 0)
    median = quantiles.answer(prefixes, 0.5, noise=noise, z=deviations())
    assert median.covers(float(np.nanmedian(values[own]))).mean() > 0.94

    cells = codes_by_group(np.array([0, 1, 1]), np.array([1, 0, -1]), cells=2, number=2)
    assert cells.tolist() == [2, 1, 4]


def test_a_forecast_of_a_guessed_table_is_the_width_that_comes() -> None:
    scores = Scores(bins=6)
    guessed = np.array([90, 80, 60, 40, 20, 10, 10, 20, 40, 60, 80, 90, 0.0])

    def auc(sums: Floats, noise: float) -> Interval:
        answers = scores.answers(sums, noise=noise, records=600)
        return answers.auc(z=deviations())

    noisy = guessed + generator(9).normal(0, 5.28, (2000, 13))
    came = auc(noisy, 5.28)
    width = float((came.high - came.low).mean() / 2)
    assert half_width(auc, guessed, 5.28) == pytest.approx(width, rel=0.05)
    stated: dict[str, Any] = {"noise_at_unit": math.sqrt(2), "delta": 1e-5}
    epsilon = epsilon_for(auc, guessed, wished=width, **stated)
    assert epsilon == pytest.approx(1.0, rel=0.08)
    assert epsilon_for(auc, guessed, wished=1e-9, **stated) is None


def test_the_command_names_the_claims_that_there_are() -> None:
    found = CliRunner().invoke(experiments, ["questions", "none"])
    assert found.exit_code != 0
    assert all(name in found.output for name in CLAIMS)
