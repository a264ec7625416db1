"""The three guarantees: what enters each, the events that they are of, and the least
noise."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypedDict, Unpack

import pytest
from tests.conftest import TaskMaker, small_task
from tests.rig.accounts import composed, drawn_twice, epsilon_by_grid
from tests.rig.epsilons import record_epsilon

from precad.accounting import events, guarantees
from precad.accounting.adversaries import Adversary, Basis, Run, planned_participations
from precad.accounting.events import (
    AccountantName,
    ReleaseCounts,
    SampledGaussian,
    poisson_gaussian,
)
from precad.accounting.exact import (
    epsilon_spent,
    group_profiles,
    most_participations,
)
from precad.accounting.guarantees import (
    BLOCKS,
    PrivacyStatement,
    advantages,
    honest_rejection,
)
from precad.aggregator.noise import DiscreteGaussian
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.ring import Keystream, RingVector


class Plan(TypedDict):
    record_rate: float
    client_rate: float
    noise_multiplier: float
    rounds: int


class Counted(TypedDict, total=False):
    participations: int
    counts: ReleaseCounts


class Given(Counted, total=False):
    record_rate: float
    client_rate: float
    noise_multiplier: float
    rounds: int
    sensitivity_ratio: float
    cover_uploads: bool


class Step(TypedDict):
    record_rate: float
    noise_multiplier: float
    delta: float


DEMO: Plan = {
    "record_rate": 0.2,
    "client_rate": 1.0,
    "noise_multiplier": 2.0,
    "rounds": 60,
}
PAPER = DEMO | {
    "record_rate": 0.05,
    "client_rate": 0.1,
    "noise_multiplier": 1.0,
    "rounds": 5000,
}
STEP: Step = {"record_rate": 0.05, "noise_multiplier": 1.0, "delta": 1e-5}
ONE_SERVER, CLIENTS_ONLY = Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY


def one(
    adversary: Adversary, of: Run | None = None, **given: Unpack[Given]
) -> PrivacyStatement:
    run, name = of or Run(**given), AccountantName.EXACT
    (statement,) = guarantees.guarantees(run, 1e-5, [adversary], [name])
    return statement


def stated(**given: Unpack[Given]) -> tuple[PrivacyStatement, ...]:
    return guarantees.guarantees(Run(**given), 1e-5)


def test_planning_takes_a_high_quantile_of_participations_and_an_atom_mixture() -> None:
    assert planned_participations(0.1, 5000) == 567
    assert one(ONE_SERVER, **PAPER).compositions == 567
    assert one(ONE_SERVER, **PAPER, participations=480).compositions == 480
    planned = one(CLIENTS_ONLY, **PAPER)
    assert (planned.compositions, round(planned.epsilon, 2)) == (5000, 4.15)
    # After a run it is the real number, of as much more noise as both servers add.
    after = one(CLIENTS_ONLY, **PAPER, participations=567)
    alone = one(ONE_SERVER, **PAPER | {"noise_multiplier": math.sqrt(2)})
    expected: tuple[object, ...] = (
        pytest.approx(math.sqrt(2)),
        pytest.approx(alone.epsilon),
    )
    assert (after.compositions, after.noise_multiplier, after.epsilon) == (
        567,
        *expected,
    )


def test_json_has_the_agreed_keys_and_no_infinity() -> None:
    # Without clips the client level is left out, and refused when it is asked for.
    assert {s.adversary for s in stated(**DEMO)} == {ONE_SERVER, CLIENTS_ONLY}
    with pytest.raises(Misconfiguration, match="sensitivity_ratio"):
        one(Adversary.CLIENT_LEVEL, **DEMO)
    statements = stated(**DEMO, sensitivity_ratio=0.01)
    assert any(s.mu == math.inf for s in statements)
    for statement in statements:
        document = json.loads(json.dumps(statement.to_json(), allow_nan=False))
        assert set(document) == {
            "adversary",
            "adjacency",
            "at_owners",
            "epsilon_at_one",
            "owners_per_unit",
            "unit",
            "accountant",
            "runs",
            "record_rate",
            "client_rate",
            "noise_multiplier",
            "compositions",
            "basis",
            "delta",
            "rejection_delta",
            "epsilon",
            "least_epsilon",
            "mu",
            "malicious_server",
            "advantage_delta",
        }
        assert document["record_rate"] == 0.2
        assert document["mu"] is None or statement.accountant is AccountantName.GDP_CLT


@pytest.mark.parametrize(
    ("limit", "ceiling"), [(4.0, 1000), (4.0, 50), (0.5, 1000), (0.0, 10)]
)
def test_a_ledger_stops_exactly_before_its_limit(limit: float, ceiling: int) -> None:
    step = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
    most = most_participations(
        step, delta=STEP["delta"], epsilon_limit=limit, ceiling=ceiling
    )
    assert 0 <= most <= ceiling
    assert epsilon_spent(step, delta=STEP["delta"], counts={0: most}) <= limit
    if most < ceiling:
        further = epsilon_spent(step, delta=STEP["delta"], counts={0: most + 1})
        assert further > limit


def test_an_unhidden_coin_is_an_atom_and_amplifies_nothing() -> None:
    seldom = DEMO | {"client_rate": 0.1}
    seen, hidden, always = (
        one(
            Adversary.CLIENT_LEVEL,
            **values,
            sensitivity_ratio=2.0,
            cover_uploads=covered,
        )
        for values, covered in ((seldom, False), (seldom, True), (DEMO, False))
    )
    assert 2 * hidden.epsilon < seen.epsilon < always.epsilon
    # Six full steps in the mean, and more of them for one client in many.
    steps = poisson_gaussian(rate=1.0, noise_multiplier=math.sqrt(2) * 2 * 2, count=6)
    assert seen.epsilon > composed(steps).epsilon(1e-5)


def test_a_version_released_twice_has_its_noise_divided_and_not_one_step_more() -> None:
    twice = record_epsilon(**STEP, counts={1: 50})
    halved = STEP | {"noise_multiplier": 1 / math.sqrt(2)}
    assert twice == record_epsilon(**halved, participations=50)
    further = record_epsilon(**STEP, participations=100)
    assert (round(twice, 2), round(further, 2)) == (5.98, 3.50)
    mixed = record_epsilon(**STEP, counts={0: 50, 1: 2, 5: 0})
    least = record_epsilon(**STEP, participations=52)
    assert least < mixed < record_epsilon(**STEP, counts={1: 52})
    assert record_epsilon(**STEP, counts={0: 50}) == record_epsilon(
        **STEP, participations=50
    )


@pytest.mark.parametrize(
    "given",
    [
        {"participations": -3},
        {"counts": {-1: 3}},
        {"counts": {0: -3}},
    ],
)
def test_participations_and_counts_are_in_range(given: Counted) -> None:
    with pytest.raises(Misconfiguration):
        record_epsilon(**STEP, **given)


def test_a_run_takes_counts_by_m_at_every_level() -> None:
    values = DEMO | {"client_rate": 0.5}
    plain = stated(**values, sensitivity_ratio=2.0, participations=30)
    again = stated(**values, sensitivity_ratio=2.0, counts={0: 25, 2: 5})
    for once, more in zip(plain, again, strict=True):
        assert once.compositions == more.compositions
        assert once.epsilon < more.epsilon
    with pytest.raises(Misconfiguration, match="participations"):
        stated(
            **values,
            sensitivity_ratio=2.0,
            participations=29,
            counts={0: 25, 2: 5},
        )
    with pytest.raises(Misconfiguration, match="at most 60"):
        stated(**values, sensitivity_ratio=2.0, counts={0: 60, 1: 1})


def test_every_statement_says_what_its_participations_are() -> None:
    assert Run(**DEMO).basis is Basis.PLANNED
    counted = Run(**DEMO, counts={0: 20, 1: 4})
    assert counted.basis is Basis.COUNTED
    capped = counted.at_cap(40)
    assert (capped.basis, capped.participations, capped.counts) == (
        Basis.CAP,
        40,
        {0: 36, 1: 4},
    )
    real, cap = one(ONE_SERVER, counted), one(ONE_SERVER, capped)
    assert real.epsilon < cap.epsilon
    assert cap.to_json()["basis"] == "cap"
    assert Run(**DEMO).at_cap(1000).participations == 60
    # Only T was fixed before it came to that.
    beyond = counted.at_cap(20)
    assert (beyond.participations, beyond.counts) == (60, {0: 56, 1: 4})


def often(attempts: int, projections: int = 40, *, proved: bool = False) -> Run:
    return Run(
        **DEMO, attempts=attempts, projections=projections, malicious_server=proved
    )


def test_honest_rejection_is_what_the_range_test_adds_to_delta() -> None:
    many = often(10**7)
    assert honest_rejection(0.0, many) == pytest.approx(
        1.6e9 * math.exp(-49), rel=1e-9, abs=0
    )
    added = honest_rejection(4.0, many) / (1 + math.exp(4))
    assert added == pytest.approx(4.2e-13, rel=0.02, abs=0)
    assert honest_rejection(math.inf, often(1)) == honest_rejection(1e4, often(1)) == 1
    assert honest_rejection(math.inf, often(0)) == 0
    proved = honest_rejection(0.0, often(10**7, 100, proved=True))
    assert proved == pytest.approx(4e9 * math.exp(-64), rel=1e-9, abs=0)
    known = one(ONE_SERVER, often(1200))
    assert known.rejection_delta == honest_rejection(known.epsilon, often(1200))
    assert one(ONE_SERVER, **DEMO).rejection_delta is None
    # Breaking the cryptography adds what the assumption says: 16 uses at 2^−80 each
    # submission.
    once = 16 * 2.0**-80
    assert advantages(0.0, often(1)) == pytest.approx(2 * once, rel=1e-9, abs=0)
    in_all = (1 + math.exp(4)) * 1000 * once
    assert advantages(4.0, often(1000)) == pytest.approx(in_all, rel=1e-9, abs=0)
    assert 1e-19 < in_all < 1e-18
    assert advantages(math.inf, often(1)) == advantages(1e4, often(1)) == 1
    assert advantages(math.inf, often(0)) == 0
    # n blocks of AES differ from random ones by n²/2^129: 2^−80 a use allows for 2^24
    # of them, and longer streams add what they are longer.
    for dimension in (2**23, 10**7, 10**8, 8_589_934_591):
        long = replace(often(1), dimension=dimension)
        apart = (BLOCKS * dimension) ** 2 / 2**129
        assert advantages(0.0, long) >= 2 * 16 * (2.0**-81 + apart) * (1 - 1e-9)
    most = replace(often(1), dimension=2**23)
    assert advantages(0.0, most) == advantages(0.0, often(1))
    task = small_task(16)
    assert Run.of(task).dimension == task.dimension


@pytest.mark.parametrize("noise_units", [1024.0, 2.0**40])
def test_no_stream_of_a_coordinate_takes_more_blocks_than_is_allowed_for(
    noise_units: float,
) -> None:
    """The longest is the noise's: what proposals are refused costs words too."""
    dimension, words = 100_000, 0

    class Counted(Keystream):
        def words(self, count: int) -> RingVector:
            nonlocal words
            words += count
            return super().words(count)

    stream = Counted(Secret(bytes(32)), "noise")
    DiscreteGaussian(noise_units, lambda: stream).draw(dimension)
    assert 1.5 * dimension < words * 8 / 16 < 1.7 * dimension < BLOCKS * dimension


def test_only_proofs_at_the_cap_cover_a_malicious_server(make_task: TaskMaker) -> None:
    """A server that cheats decides when a client takes part, so what was counted says
    nothing."""
    for check, covers in (("crypten", False), ("proof", True)):
        run = Run.of(make_task(8, {"validation": check}))
        with_masks = Run.of(make_task(8)).at_cap(3)
        for each in (
            run,
            replace(run, participations=3, basis=None),
            [run.at_cap(3), with_masks],
        ):
            assert not any(
                s.malicious_server for s in guarantees.guarantees(each, 1e-5)
            )
        for each in (run.at_cap(run.rounds), [run.at_cap(3)] * 2):
            found = guarantees.guarantees(each, 1e-5)
            covered = {s.adversary for s in found if s.malicious_server}
            assert covered == ({ONE_SERVER} if covers else set())
        for statement in guarantees.guarantees(run.at_cap(run.rounds), 1e-5):
            bad = statement.malicious_server
            assert ("malicious" in statement.against) == bad
            assert statement.to_json()["malicious_server"] == bad
            assert (statement.rejection_delta or 0) > 0
            assert statement.advantage_delta == (
                advantages(statement.epsilon, run) if bad else None
            )


MAKE: Callable[..., SampledGaussian] = SampledGaussian
WHOLE: dict[str, object] = {
    "sampling": events.Sampling.POISSON,
    "adjacency": events.Adjacency.ADD_REMOVE,
    "rate": 0.1,
    "noise_multiplier": 1.0,
    "sensitivity": 1.0,
    "denominator": events.Denominator.FIXED,
}


@pytest.mark.parametrize("field", list(WHOLE))
def test_nothing_that_decides_the_cost_has_a_default(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        MAKE(**{k: v for k, v in WHOLE.items() if k != field})


FIXED: dict[str, object] = {"sampling": events.Sampling.FIXED_SIZE}
REPLACED: dict[str, object] = {"adjacency": events.Adjacency.REPLACE_ONE}
TWO_CLIPS = [FIXED | REPLACED, FIXED, REPLACED]
"""Where one record moves the sum by two."""
OUT_OF_RANGE = {
    "rate": (-0.1, 1.1, math.nan),
    "noise_multiplier": (0.0, -1.0, math.inf),
    "sensitivity": (0.0,),
    "count": (-1, 1.5, True),
    "participation": (1.5, -0.1),
    "denominator": (events.Denominator.DATA_DEPENDENT,),
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        *(
            ({field: value}, field)
            for field, values in OUT_OF_RANGE.items()
            for value in values
        ),
        *((change, "sensitivity") for change in TWO_CLIPS),
    ],
)
def test_a_value_out_of_range_is_named_with_its_remedy(
    change: dict[str, object], field: str
) -> None:
    with pytest.raises(Misconfiguration) as refused:
        MAKE(**WHOLE | change)
    assert refused.value.field == field
    assert refused.value.remedy
    # Two clips halve the noise.
    found = [MAKE(**WHOLE | each | {"sensitivity": 2.0}) for each in TWO_CLIPS]
    assert [event.effective_noise_multiplier for event in found] == [0.5] * 3


DELTA = 1e-5


def with_noise(sigma: float) -> SampledGaussian:
    return poisson_gaussian(rate=0.2, noise_multiplier=sigma, count=60)


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_least_noise(epsilon: float) -> None:
    least = partial(guarantees.least_noise_multiplier, delta=DELTA)
    sigma = least(with_noise, epsilon=epsilon)
    # One less in the fourth digit.
    less = sigma - 10.0 ** (math.floor(math.log10(sigma)) - 3)
    enough, too_little = (
        composed(with_noise(s), by=AccountantName.EXACT).epsilon(DELTA)
        for s in (sigma, less)
    )
    assert enough <= epsilon < too_little
    # A target that everything meets gives the end of the range, and what nothing meets
    # is refused.
    assert least(with_noise, epsilon=1e6) == 0.01
    always = poisson_gaussian(rate=1.0, noise_multiplier=1.0)
    with pytest.raises(Misconfiguration, match="no noise multiplier"):
        least(lambda _: always, epsilon=0.1)


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "group", "added"),
    [(0.05, 1.0, 500, 17.54, 15.05), (0.2, 2.0, 60, 8.69, 7.66)],
)
def test_a_person_at_two_owners_of_one_task_is_a_group_of_two_and_no_sum(
    rate: float, noise: float, rounds: int, group: float, added: float
) -> None:
    """docs/several-tasks.md and docs/data-owner.md have the numbers."""
    step = poisson_gaussian(rate=rate, noise_multiplier=noise, count=rounds)
    alone = composed(step).epsilon(1e-5)
    assert 2 * alone == pytest.approx(added, abs=0.005)
    exactly = max(
        next(e for e, d in zip(*profile, strict=True) if d <= 1e-5)
        for profile in group_profiles(step, 2)
    )
    both = {drawn_twice(rate, (1.0,), (1.0,)): rounds}
    independent = epsilon_by_grid(both, noise, 1e-5)
    assert exactly == pytest.approx(independent, abs=0.005)
    assert independent == pytest.approx(group, abs=0.006)
    # One owner after the other: the second's δ grows by the first's e^ε.
    delta = 1e-5 * (1 + math.exp(alone))
    assert epsilon_by_grid(both, noise, delta) <= 2 * alone < independent
    # In two tasks both stand in sums of their own.
    assert composed(step, step).epsilon(2e-5) <= 2 * alone
