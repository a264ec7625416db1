"""Certifying: results, intervals, baselines, losses, bad input, and groups of any
size."""

import importlib
import itertools
import math
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import Any, get_args

import numpy as np
import pytest
from mpmath import mp, mpf
from research import printed as printed_in_papers
from research.defences.ensembles import bagging_holds, bagging_radii, partition_radii
from research.papers.general_groups import Iterated, RenyiDP
from research.printed import printed_certificates as certificates
from tests.rig.certified import certify_prediction

from precad.accounting.events import Adjacency, Sampling, poisson_gaussian
from precad.accounting.group_rdp import mixture_divergences
from precad.accounting.guarantees import PrivacyStatement
from precad.accounting.losses import SampledRound, group_shift, log_affinity
from precad.certify import guarantee as of
from precad.certify import intervals, prediction
from precad.certify.group_guarantees import (
    ExactGroups,
    RenyiCurves,
    RenyiGroups,
    renyi_reach_poisoned_over_clean,
)
from precad.certify.guarantee import (
    ApproximateDP,
    Direction,
    GaussianDP,
    Guarantee,
    Replacements,
)
from precad.certify.inefficacy import attack_bounds, fewest_attackers
from precad.certify.intervals import (
    ConfidenceBudget,
    Intervals,
    score_intervals,
    simuem,
    votes_of,
)
from precad.certify.prediction import Certified, certify_predictions, certify_smoothing
from precad.cli.certify_inputs import MOST_POINTS
from precad.common.errors import Misconfiguration
from precad.common.proof_shape import P, ProofShape

MECHANISM = poisson_gaussian(rate=0.01, noise_multiplier=1.0, count=20)
REPLACED = replace(MECHANISM, adjacency=Adjacency.REPLACE_ONE, sensitivity=2.0)
FIXED_SIZE = replace(REPLACED, sampling=Sampling.FIXED_SIZE)
ONE = Intervals(np.array([0]), np.array([0.99]), np.array([0.01]))
TWO_CLASSES = ConfidenceBudget(confidence=0.9, classes=2)
ADDED = Direction.ADDITIONS


def test_points_are_certified_alike_alone_and_together() -> None:
    generator = np.random.default_rng(5)
    p_a = generator.uniform(0.5, 1, 12)
    p_b = (1 - p_a) * generator.uniform(0, 1.2, 12)
    points = Intervals(np.arange(12), p_a, p_b)
    for guarantee in (ExactGroups(MECHANISM), RenyiGroups(MECHANISM), GaussianDP(0.05)):
        alone = [certify_prediction(p_a[i], p_b[i], i, guarantee) for i in range(12)]
        assert certify_predictions(points, guarantee).results() == alone


def test_without_influence_every_group_is_certified_and_with_little_noise_none() -> (
    None
):
    for silent in (
        poisson_gaussian(rate=0.0, noise_multiplier=1.0, count=10),
        poisson_gaussian(rate=0.5, noise_multiplier=1.0, count=0),
        poisson_gaussian(rate=0.5, noise_multiplier=1.0, count=10, participation=0.0),
    ):
        result = certify_prediction(0.6, 0.3, 0, ExactGroups(silent), limit=500)
        assert result == Certified(label=0, radius=500, additions=500, deletions=500)
    loud = poisson_gaussian(rate=0.9, noise_multiplier=0.05, count=200)
    for guarantee in (
        ExactGroups(loud),
        RenyiGroups(loud),
        ExactGroups(loud).as_approximate(),
    ):
        assert certify_prediction(0.9999, 1e-4, 0, guarantee) == Certified(
            label=0, radius=0, additions=0, deletions=0
        )
    # Replacements cost about twice as much.
    for dp, radius in ((GaussianDP(0.1), 14), (Replacements(GaussianDP(0.1)), 7)):
        assert certify_prediction(0.9, 0.05, 0, dp) == Certified(
            label=0, radius=radius, additions=radius, deletions=radius
        )


@pytest.mark.parametrize(("p_a", "p_b"), [(0.6, 0.55), (0.75, 0.7), (0.51, 0.5)])
def test_the_joint_test_says_nothing_of_scores_that_sum_above_one(
    p_a: float, p_b: float
) -> None:
    """Lemma 5 is about probabilities of two answers to one question: they sum to 1 at
    most.

    Its formula has a reach for such scores too, which no divergence so small passes.
    """
    small = np.array([1e-9])
    orders = np.array([2.0])
    curves = RenyiCurves(
        orders=orders, poisoned_over_clean=small, clean_over_poisoned=small
    )
    assert p_a + p_b > 1
    assert renyi_reach_poisoned_over_clean(p_a, p_b, orders) > small
    assert not curves.separates(p_a, p_b)
    # The same margin between scores that do sum to 1 is certified.
    assert curves.separates(0.5 + (p_a - p_b) / 2, 0.5 - (p_a - p_b) / 2)


def test_validation_adds_malicious_submissions_times_its_soundness_error() -> None:
    base = GaussianDP(0.1)
    widened = of.ValidationAllowance(base, attempts=60, soundness_bits=10)
    before, after = (guarantee.curves(3, ADDED) for guarantee in (base, widened))
    for p in (0.2, 0.7):
        assert float(after.upper(p)) == pytest.approx(
            float(before.upper(p)) + 3 * 60 / 1024
        )
        least = max(0, float(before.lower(p)) - 3 * 60 / 1024)
        assert float(after.lower(p)) == pytest.approx(least)
        one, other = (
            each.curves(3, Direction.DELETIONS).upper(p) for each in (base, widened)
        )
        assert one == other


def test_with_proofs_hashes_count_once_and_submissions_by_their_points() -> None:
    """T·(2^−k + 4/p²) + Q·2N/(p − 2N): docs/soundness.md, part 4."""
    p, chance = 2**64 - 2**32 + 1, of.chance_to_pass
    widened = of.ValidationAllowance(GaussianDP(0.1), 60, 100, 1024)
    for submissions in (1, 60, 10**6):
        exact = 2**60 * (Fraction(1, 2**100) + Fraction(4, p**2))
        exact += submissions * Fraction(2 * 1024, p - 2 * 1024)
        assert chance(submissions, 100, 1024) == pytest.approx(
            float(exact), rel=1e-12, abs=0
        )
    # 2^−40 and Q·2^−53.
    hashes, in_all = (chance(submissions, 100, 1024) for submissions in (0, 10**6))
    logs = [math.log2(hashes), math.log2(in_all - hashes)]
    assert logs == pytest.approx([-40, math.log2(10**6) - 53], abs=0.001)
    shift = widened.curves(3, ADDED).upper(0.2) - GaussianDP(0.1).curves(
        3, ADDED
    ).upper(0.2)
    assert float(shift) == pytest.approx(chance(180, 100, 1024), rel=1e-3, abs=0)


def test_what_one_point_adds_is_at_most_a_multiple_of_the_dimensions_root() -> None:
    """√d·2^−62 from d = 10^4 on, as README and docs/soundness.md say; never 2^−53 alone."""
    points = {}
    for dimension in np.unique(np.geomspace(10**4, 8_589_934_591, 400).astype(int)):
        for bound in (1000, 2**25):
            shape = ProofShape(int(dimension), bound, 100)
            exact = Fraction(2 * shape.points, P - 2 * shape.points)
            assert exact <= math.sqrt(dimension) * 2.0**-62
            # What a certificate of runs takes for d, from N alone.
            assert dimension < 3 * shape.points**2
    for dimension, bits in ((10**6, 53), (10**8, 50), (8_589_934_591, 47)):
        points[dimension] = ProofShape(dimension, 2**25, 100).points
        assert round(math.log2(2 * points[dimension] / P)) == -bits
    # Nobody's N is larger than what is taken where bits are typed alone.
    assert max(points.values()) == MOST_POINTS


def test_a_reproduction_never_becomes_a_certificate() -> None:
    printed: Any = certificates.theorem_8(0.99, 0.01, MECHANISM)
    assert not isinstance(printed, Guarantee | Certified | PrivacyStatement)
    for certify in (
        lambda: certify_predictions(ONE, printed),
        lambda: certify_prediction(0.99, 0.01, 0, printed),
        lambda: attack_bounds(0.5, 1.0, printed, 1),
        lambda: fewest_attackers(value=0.5, bound=1.0, ratio=2.0, guarantee=printed),
    ):
        with pytest.raises(Misconfiguration, match="guarantee"):
            certify()


def test_nothing_published_issues_a_certificate() -> None:
    issued: tuple[type, ...] = (of.Curves, Guarantee, PrivacyStatement, Certified)
    issued += (prediction.PredictionCertificates, prediction.SmoothingCertificates)
    defined = 0
    for found in pkgutil.iter_modules(printed_in_papers.__path__):
        module = importlib.import_module(f"{printed_in_papers.__name__}.{found.name}")
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) != module.__name__:
                continue
            defined += 1
            assert not (isinstance(value, type) and issubclass(value, issued)), name
            returned = getattr(value, "__annotations__", {}).get("return")
            assert {returned, *get_args(returned)}.isdisjoint(issued), name
    assert defined > 20


def test_the_budget_is_split_over_classes_points_and_strictness_and_covers() -> None:
    assert ConfidenceBudget(confidence=0.999, classes=10).per_interval == pytest.approx(
        1e-4
    )
    assert ConfidenceBudget(
        confidence=0.999, classes=10, points=100
    ).per_interval == pytest.approx(1e-6)
    assert ConfidenceBudget(
        confidence=0.999, classes=10, strict=True
    ).per_interval == pytest.approx(5e-5)
    counts = [[700, 200, 100]]
    loose, strict = (
        simuem(counts, ConfidenceBudget(confidence=0.999, classes=3, strict=s))
        for s in (False, True)
    )
    assert strict.p_a < loose.p_a
    assert strict.p_b > loose.p_b
    # And intervals cover at their confidence.
    drawn = np.random.default_rng(1).multinomial(200, [0.6, 0.3, 0.1], 4000)
    found = simuem(drawn, ConfidenceBudget(confidence=0.9, classes=3))
    missed = (found.labels != 0) | (found.p_a > 0.6) | (found.p_b < 0.3)
    assert missed.mean() < 0.1


def test_the_others_expected_score_is_at_most_what_is_left() -> None:
    """A label whose scores vary has a wider Bernstein bound than the winner, which is
    certain."""
    scores = np.full((1, 100, 3), 0.5)
    scores[0, :3, 1], scores[0, 3:, 2] = 0, 0
    budget = ConfidenceBudget(confidence=0.99, classes=3)
    found = score_intervals(scores, budget, intervals.ScoreBound.BERNSTEIN)
    assert float(found.p_b[0]) == pytest.approx(1 - float(found.p_a[0]), abs=1e-5)
    # One model's scores don't sum to one: nothing is known of what is left.
    scores[0, 3, 2] = 0.5
    free = score_intervals(scores, budget, intervals.ScoreBound.BERNSTEIN)
    assert float(free.p_b[0]) > 1 - float(free.p_a[0]) + 0.01


@pytest.mark.parametrize("bound", intervals.ScoreBound)
def test_scores_bound_their_expectation(bound: intervals.ScoreBound) -> None:
    generator = np.random.default_rng(3)
    scores = generator.dirichlet([8.0, 1.0, 1.0], size=(300, 500))
    found = score_intervals(scores, ConfidenceBudget(confidence=0.99, classes=3), bound)
    assert ((found.labels == 0) & (found.p_a > 0.6)).all()
    assert min((found.p_a < 0.8).mean(), (found.p_b > 0.1).mean()) > 0.99


def test_loss_bounds_take_the_worse_direction_and_attackers_the_first_that_reach() -> (
    None
):
    guarantee = ExactGroups(poisson_gaussian(rate=0.05, noise_multiplier=0.8, count=30))
    both = attack_bounds(0.3, 2.0, guarantee, 2)
    single = [
        attack_bounds(0.3, 2.0, guarantee, 2, (direction,)) for direction in Direction
    ]
    assert (
        both.upper
        == max(one.upper for one in single)
        != min(one.upper for one in single)
    )
    assert both.lower == min(one.lower for one in single)
    # The fewest attackers are where a bound first allows the goal.
    dp = GaussianDP(0.2)
    k = fewest_attackers(value=0.5, bound=1.0, ratio=4.0, guarantee=dp)
    assert k is not None
    least, before = (
        float(attack_bounds(0.5, 1.0, dp, each).lower) for each in (k, k - 1)
    )
    assert least <= 0.125 < before
    assert fewest_attackers(value=0.5, bound=1.0, ratio=1.0, guarantee=dp) == 0
    assert (
        fewest_attackers(
            value=0.5, bound=1.0, ratio=4.0, guarantee=GaussianDP(0.0), limit=100
        )
        is None
    )


def test_bagging_agrees_with_exact_fractions_over_all_sizes() -> None:
    n, s = 30, 4
    for k, (p_a, p_b) in itertools.product(
        range(1, 8), ((0.95, 0.02), (0.7, 0.2), (0.99, 0.01))
    ):
        worst = max(
            Fraction(size, n) ** s - 2 * Fraction(max(n, size) - k, n) ** s
            for size in range(n - k, n + k + 1)
        )
        expected = p_a - p_b > 1 + worst
        assert (
            bool(bagging_holds(np.array([p_a]), np.array([p_b]), k, n, s)[0])
            is expected
        )


def test_partitions_agree_with_moving_votes() -> None:
    counts = np.random.default_rng(11).multinomial(11, [0.5, 0.3, 0.2], 60)
    found = partition_radii(counts)

    def flips(row: list[int], label: int, changed: int) -> bool:
        """Whether so many votes less for the label and more for one rival make another
        winner."""
        winners = set()
        for rival in {0, 1, 2} - {label}:
            moved = list(row)
            step = min(changed, moved[label])
            moved[label] -= step
            moved[rival] += step
            winners.add(int(np.argmax(moved)))
        return winners != {label}

    for row, label, radius in zip(counts, found.labels, found.radius, strict=True):
        votes, own = row.tolist(), int(label)
        assert not flips(votes, own, int(radius))
        assert flips(votes, own, int(radius) + 1)


EXACT, GAUSSIAN = ExactGroups(MECHANISM), GaussianDP(1)
Given = tuple[object, ...] | Mapping[str, object]
BAD: list[tuple[str, Callable[..., object], *tuple[Given, ...]]] = [
    ("sampling", ExactGroups, (FIXED_SIZE,), (REPLACED,)),
    ("sampling", RenyiGroups, (FIXED_SIZE,)),
    ("delta", EXACT.as_approximate, (1.0,)),
    ("k", EXACT.curves, (-1, ADDED)),
    ("k", Iterated(GAUSSIAN).curves, (-2, ADDED)),
    ("score", GAUSSIAN.curves(1, ADDED).upper, (1.5,), (math.nan,)),
    ("mu", GaussianDP, (-1,)),
    ("epsilon", ApproximateDP.single, (-0.1, 0.0)),
    ("delta", ApproximateDP.single, (0.1, 1.0)),
    ("epsilons", ApproximateDP, ((), ()), ((1.0,), ()), ((1.0, 2.0), (1e-5,))),
    ("orders", RenyiDP, ((1.0,), (0.1,))),
    ("orders", RenyiGroups, (MECHANISM, (0.5,))),
    (
        "confidence",
        ConfidenceBudget,
        {"confidence": 1.0, "classes": 10},
        {"confidence": 0.0, "classes": 10},
    ),
    ("classes", ConfidenceBudget, {"confidence": 0.9, "classes": 1}),
    (
        "votes",
        simuem,
        *((votes, TWO_CLASSES) for votes in ([[10, 2], [10, 1]], [[0, 0]])),
    ),
    (
        "votes",
        simuem,
        *((votes, TWO_CLASSES) for votes in ([[math.nan, 2.0]], [[13, -1], [11, 1]])),
    ),
    ("classes", simuem, ([[5, 5, 5]], TWO_CLASSES)),
    ("labels", votes_of, ([[0, -1]],), ([[0, 5]], 3)),
    (
        "scores",
        score_intervals,
        *((np.full((1, 2, 2), s), TWO_CLASSES) for s in (np.nan, 1.1)),
    ),
    ("scores", score_intervals, (np.ones((2, 2)), TWO_CLASSES)),
    ("bound", attack_bounds, (0.5, 0.0, GAUSSIAN, 1)),
    ("loss / bound", attack_bounds, (2.0, 1.0, GAUSSIAN, 1)),
    (
        "tau",
        fewest_attackers,
        {"value": 0.5, "bound": 1.0, "ratio": 0.5, "guarantee": GAUSSIAN},
    ),
    ("sigma", certify_smoothing, ([[9, 1]], 0.0, TWO_CLASSES)),
    ("selection", certify_smoothing, ([[9, 1]], 1.0, TWO_CLASSES, [[1, 0, 0]])),
    ("training_size", bagging_radii, (ONE, 0, 5)),
    ("directions", certify_predictions, (ONE, GAUSSIAN, ())),
]


@pytest.mark.parametrize(
    ("field", "make", "given"),
    [(field, make, each) for field, make, *some in BAD for each in some],
)
def test_bad_input_names_field_and_remedy(
    field: str, make: Callable[..., object], given: Given
) -> None:
    with pytest.raises(Misconfiguration) as caught:
        make(**given) if isinstance(given, dict) else make(*given)
    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize("direction", list(Direction))
def test_absent_honest_clients_are_deleted_whatever_the_attackers_do(
    direction: Direction,
) -> None:
    """They counted as more additions beside additions, which bounds no deletion."""
    base = ExactGroups(poisson_gaussian(rate=0.05, noise_multiplier=0.8, count=50))
    scores, absent = np.linspace(0.01, 0.99, 25), of.WithAbsent(base, 3)
    chosen = absent.curves(1, direction)
    for least in (base.curves(1, direction), base.curves(3, Direction.DELETIONS)):
        assert (chosen.upper(scores) >= least.upper(scores) - 1e-12).all()
        assert (chosen.lower(scores) <= least.lower(scores) + 1e-12).all()
    if direction is ADDED:
        assert (chosen.upper(scores) == of.mixed(base, 1, 3).upper(scores)).all()
    assert (absent.curves(0, direction).upper(scores) == scores).all()


def binomial(k: int, rate: float) -> list[mpf]:
    q = mpf(rate)
    return [mp.binomial(k, i) * q**i * (1 - q) ** (k - i) for i in range(k + 1)]


def forward_moment(k: int, rate: float, sigma: float, alpha: int) -> mpf:
    """E_Q[(P/Q)^α]: over all choices of α shifts, w_1⋯w_α·e^{Σ_{a<b} i_a·i_b/σ²}."""
    weights, total = binomial(k, rate), mpf(0)
    for chosen in combinations_with_replacement(range(k + 1), alpha):
        times = Counter(chosen)
        ways = factorial(alpha) // prod(map(factorial, times.values()))
        pairs = sum(chosen) ** 2 - sum(n * i * i for i, n in times.items())
        weight = mp.fprod(weights[i] ** n for i, n in times.items())
        total += ways * weight * mp.exp(mpf(pairs) / (2 * mpf(sigma) ** 2))
    return total


def reverse_moment(k: int, rate: float, sigma: float, alpha: float) -> mpf:
    """E_Q[(Q/P)^{α−1}]."""
    weights, s = binomial(k, rate), mpf(sigma)

    def integrand(x: mpf) -> mpf:
        ratio = mp.fsum(
            w * mp.exp((2 * i * x - i * i) / (2 * s * s)) for i, w in enumerate(weights)
        )
        return mp.npdf(x, 0, s) * ratio ** (1 - mpf(alpha))

    return mp.quad(integrand, mp.linspace(-30 * s, 14 * s, 12))


OF_ORDERS = [
    (1, 1e-6, 3.0, 2),
    (1, 0.3, 1.0, 1025),
    (1, 1e-6, 1.0, 1025),
    (2, 0.05, 2.0, 9),
]


@pytest.mark.parametrize(
    ("k", "rate", "sigma", "alpha"), [*OF_ORDERS, (7, 0.4, 3.0, 4)]
)
def test_a_groups_divergence_is_the_closed_form(
    k: int, rate: float, sigma: float, alpha: int
) -> None:
    forward, _ = mixture_divergences(
        group_shift(SampledRound(rate, sigma, 1.0, k)),
        noise=sigma,
        orders=np.array([float(alpha)]),
    )
    with mp.workdps(60):
        truth = mp.log(forward_moment(k, rate, sigma, alpha)) / (alpha - 1)
        assert truth <= mpf(forward[0].item()) <= truth * (1 + 1e-10) + 1e-12


@pytest.mark.parametrize("alpha", [1.001, 3.5, 65.0])
@pytest.mark.parametrize(("k", "rate", "sigma"), [(1, 1e-6, 3.0), (3, 0.2, 1.5)])
def test_the_other_directions_is_the_integral(
    k: int, rate: float, sigma: float, alpha: float
) -> None:
    _, reverse = mixture_divergences(
        group_shift(SampledRound(rate, sigma, 1.0, k)),
        noise=sigma,
        orders=np.array([alpha]),
    )
    with mp.workdps(40):
        truth = mp.log(reverse_moment(k, rate, sigma, alpha)) / (mpf(alpha) - 1)
        assert truth <= mpf(reverse[0].item()) <= truth * (1 + 1e-10) + 1e-9


@pytest.mark.parametrize(
    ("rate", "sigma", "rounds"),
    [(0.1, 2.0, 30), (0.5, 50.0, 1), (1e-3, 10.0, 10), (0.9, 1.0, 1), (1e-4, 0.01, 10)],
)
@pytest.mark.parametrize("kind", [ExactGroups, RenyiGroups])
def test_the_largest_group_has_its_curves_in_seconds(
    kind: type[ExactGroups | RenyiGroups], rate: float, sigma: float, rounds: int
) -> None:
    guarantee: Guarantee = kind(
        poisson_gaussian(rate=rate, noise_multiplier=sigma, count=rounds)
    )
    scores = np.array([0.0, 0.1, 0.9, 1.0])
    for direction in of.BOTH:
        curves = guarantee.curves(of.LARGEST_GROUP, direction)
        assert (
            (curves.lower(scores) <= scores) & (scores <= curves.upper(scores))
        ).all()
        assert curves.lower(0.9) < 1e-3


def test_a_loss_at_its_bound_is_out_of_reach_and_is_said_so_at_once() -> None:
    mechanism = poisson_gaussian(rate=0.1, noise_multiplier=2.0, count=30)
    exact = ExactGroups(mechanism)
    for guarantee, fewest in (
        *((exact, None), (Replacements(exact), None)),
        # Once this took twelve minutes and all memory.
        (RenyiGroups(mechanism), 1810),
        # What may be wrong with a probability of δ can take it there.
        (ApproximateDP.single(0.1, 1e-5), 86),
    ):
        assert (
            fewest_attackers(value=1.0, bound=1.0, ratio=2.0, guarantee=guarantee)
            == fewest
        )
    assert fewest_attackers(value=0.0, bound=1.0, ratio=2.0, guarantee=exact) == 0
    assert (
        fewest_attackers(value=1 - 1e-9, bound=1.0, ratio=2.0, guarantee=exact) or 0
    ) > 1


def test_groups_that_are_told_apart_are_those_that_share_next_to_nothing() -> None:
    for k, sigma in ((1, 1.0), (5, 2.0), (40, 30.0)):
        one = SampledRound(0.3, sigma, 0.5, k)
        x = np.linspace(-14 * sigma, k + 14 * sigma, 40_001)
        base = np.exp(-0.5 * (x / sigma) ** 2)
        weights = [float(w) for w in binomial(k, 0.3)]
        mixture = sum(
            w * np.exp(-0.5 * ((x - i) / sigma) ** 2) for i, w in enumerate(weights)
        )
        shared = 0.5 + 0.5 * np.trapezoid(np.sqrt(base * mixture), x) / (
            sigma * np.sqrt(2 * np.pi)
        )
        assert np.log(shared) <= log_affinity(one) <= 0
