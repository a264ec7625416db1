"""An account that opens with a plan: what it admits, in any order, and what it lacks."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from tests.rig.memory import in_memory
from tests.rig.questions import asking
from tests.rig.tasks import task_with

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant, group_profiles
from precad.accounting.filter import Steps, exact_epsilon
from precad.client.account_plan import PlanLimit
from precad.client.data_set_account import Account
from precad.client.own_account import OwnAccount
from precad.common.arrays import Floats
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

ME = ClientId("ward-1")
DELTA = 1e-5
QUESTION = 7.04
"""σ of a question of ε = .5 at δ = 1e-5."""
PLAN = f"""
delta = 1e-5
purse = {1 / QUESTION}

[[training]]
noise_multiplier = 1.0
record_rate = 0.05
rounds = 60
"""
Write = Callable[[str], Path]


def ask(noise: float = QUESTION) -> Task:
    return asking(changes={"noise_multiplier": noise, "delta": DELTA})


def train(rounds: int = 60, noise: float = 1.0, rate: float = 0.05) -> Task:
    privacy = {"privacy.noise_multiplier": noise, "privacy.record_rate": rate}
    return task_with({"training.rounds": rounds, "privacy.delta": DELTA, **privacy})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "participations.log"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "plan.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return written


def account(
    task: Task,
    path: Path | None = None,
    plan: Path | None = None,
    limit: float | None = None,
    **more: bool,
) -> OwnAccount:
    rate = task.mechanism.unit_rate
    return OwnAccount(task, rate, limit, path, ME, plan=plan, **more)


def filled(task: Task, path: Path, *more: object) -> int:
    """How many of the task's rounds the account admits."""
    own = account(task, path, *more)  # type: ignore[arg-type]
    version = 0
    while version < task.mechanism.releases and own.allows(version):
        own.charge(version)
        version += 1
    return version


def spent(path: Path) -> float:
    """Exact ε of all that an account holds, as its own file has it."""
    return account(ask(), path).epsilon()


@pytest.mark.parametrize("order", list(permutations((ask(), train()))))
def test_a_question_and_sixty_rounds_under_a_limit_of_three_in_either_order(
    order: tuple[Task, Task], log: Path, write: Write
) -> None:
    """Together they are exactly 2.91; the filter admits 4 of the rounds, or no question."""
    without = log.with_name("without.log")
    first = account(order[0], without, limit=3.0)
    first.charge(0)
    if order[0].query is not None:
        assert account(order[1], without, limit=3.0).rounds_left(60) == 4
    else:
        assert first.rounds_left(59) == 59
        with pytest.raises(Misconfiguration, match="open an account with a plan"):
            account(order[1], without, limit=3.0)
    plan = write(PLAN)
    admitted = [filled(each, log, plan, 3.0) for each in order]
    assert admitted == [each.mechanism.releases for each in order]
    for each in order:
        again = account(each, log)  # the account's own, without being named
        assert not again.allows(999)
    limit = account(order[0], log).limit
    assert isinstance(limit, PlanLimit)
    assert 2.9 < spent(log) <= limit.epsilon < 2.92


# What a plan has, and what it lacks


TWO = f"""
delta = 1e-5
purse = {0.3**0.5}

[[training]]
noise_multiplier = 2.0
record_rate = 0.2
rounds = 3

[[training]]
noise_multiplier = 1.0
record_rate = 0.1
rounds = 2
repeats = 1
"""
"""Two trainings of which neither covers the other."""


@pytest.mark.parametrize(
    ("task", "rounds"),
    [
        (train(9, 2.0, 0.2), 3),
        (
            train(9, 5.0, 0.1),
            3,
        ),  # more noise and a smaller rate: the first one's rounds
        (train(9, 1.0, 0.1), 2),
        (train(9, 1.9, 0.1), 2),
        (train(9, 1.9, 0.2), 0),
        (train(9, 2.0, 0.21), 0),
        (train(9, 0.99, 0.1), 0),
        (train(9, 2.0, 1.0), 5),  # of 1.3, each takes 1/4
        (ask(1.9), 1),
        (ask(0.8), 0),
    ],
)
def test_a_round_takes_from_what_covers_it(
    task: Task, rounds: int, log: Path, write: Write
) -> None:
    plan = write(TWO)
    if rounds:
        assert filled(task, log, plan) == rounds
        assert account(task, log).rounds_left(9) == 0 or task.query is not None
    else:
        with pytest.raises(Misconfiguration, match=r"plan.*2 trainings.*has no round"):
            account(task, log, plan)


def test_a_round_keeps_to_its_training_whatever_is_left_of_others(
    log: Path, write: Write
) -> None:
    """Moved later, a choice could lean on a sample that no single draw holds."""
    plan = write(TWO)
    either = account(train(9, 2.0, 0.1), log, plan)  # both cover it
    for version in range(3):
        either.charge(version)
    # Two rounds of the other training are left, which covers this one too.
    with pytest.raises(BudgetExceeded):
        either.charge(3)
    assert filled(train(9, 1.0, 0.1), log) == 2
    assert account(train(9, 2.0, 0.2), log).rounds_left(9) == 0


def test_repeats_are_paid_by_the_purse_and_by_no_round(log: Path, write: Write) -> None:
    once = account(train(9, 1.0, 0.1), log, write(TWO))
    once.charge(0, 1)
    assert not once.allows(0, 2)
    assert (once.allows(1, 1), once.allows(1), once.rounds_left(9)) == (False, True, 1)
    # Without repeats, and without a question's purse, there are none.
    bare = account(train(), None, write(PLAN.replace(str(1 / QUESTION), "0")))
    assert (bare.allows(0), bare.allows(0, 1)) == (True, False)


def test_a_version_is_charged_at_one_rate(log: Path, write: Write) -> None:
    """Two would count as one other step, which another training might cover."""
    plan = write(PLAN.replace("1.0", "0.4").replace("0.05", "0.2"))
    task = train(9, 1.0, 0.2)
    first, other = (
        OwnAccount(task, rate, None, log, ME, plan=plan) for rate in (0.1, 0.05)
    )
    first.charge(0)
    assert (other.allows(0), other.allows(1)) == (False, True)


def test_a_plan_is_fixed_when_the_account_opens(log: Path, write: Write) -> None:
    free = account(train(), log)
    late = account(train(), log, write(PLAN))  # before anything is charged
    free.charge(0)
    refusal = r"isn't this account's: a plan is fixed when an account opens"
    with pytest.raises(Misconfiguration, match=refusal):
        account(train(), log, write(PLAN))
    # Whoever had started keeps to its plan all the same.
    assert late.rounds_left(60) == 59
    late.charge(1)
    assert account(train(), log).limit is None
    log.unlink()
    account(train(), log, limit=3.0).charge(0)
    with pytest.raises(Misconfiguration, match=refusal):
        account(train(), log, write(PLAN))
    log.unlink()
    account(train(), log, write(PLAN)).charge(0)
    assert account(train(), log, write(PLAN + "# the same")).rounds_left(99) == 59
    with pytest.raises(Misconfiguration, match=refusal):
        account(train(), log, write(PLAN.replace("60", "61")))
    kept = account(train(), log, limit=3.0).limit
    assert kept == account(train(), log).limit
    for limit, raised in ((2.9, False), (0.0, False), (9.0, True), (None, True)):
        with pytest.raises(Misconfiguration, match="fixed when it opened"):
            account(train(), log, limit=limit, raise_limit=raised)


def test_who_started_before_the_plan_keeps_to_it(log: Path, write: Write) -> None:
    before = account(train(), log)
    under = account(train(), log, limit=3.0)
    account(train(), log, write(PLAN)).charge(0)
    for own in (before, under):
        assert not own.allows(1, 1)
        own.charge(2)
    other = account(train(99, 5.0, 0.01), log)
    assert other.rounds_left(99) == 58
    question = account(ask(), log)
    question.charge(0)
    assert not account(ask(9.0), log).allows(0)
    assert log.read_text().count("\nlimit ") == 0


def test_an_older_copy_takes_what_servers_charged_as_far_as_its_plan_has_it(
    log: Path, write: Write
) -> None:
    own = account(train(), log, write(PLAN))
    own.charge(0)
    older = log.read_bytes()
    for version in range(1, 50):
        own.charge(version)
    log.write_bytes(older)
    again = account(train(), log)
    assert again.lacks((50,))
    again.adopt((50,), 60)
    assert again.rounds_left(60) == 10
    with pytest.raises(Misconfiguration, match="older copy"):
        again.adopt((61,), 70)
    # Lost altogether, it opens with the plan that the settings name.
    log.unlink()
    lost = account(train(), log, write(PLAN))
    lost.adopt((50,), 60)
    assert isinstance(account(train(), log).limit, PlanLimit)


def test_a_plans_line_is_read_again_or_refused(log: Path, write: Write) -> None:
    account(train(), log, write(TWO + "owners_per_unit = 1\n")).charge(0)
    first, charge = log.read_text().splitlines()
    assert first.startswith("plan ")
    for damaged in (first.replace("0.2", "0.3"), first.replace("plan", "plan9")):
        log.write_text(f"{damaged}\n{charge}\n")
        with pytest.raises(Misconfiguration, match="can't be read"):
            account(train(), log)
    # Below a charge it counts for nothing: who put it there?
    log.write_text(f"{charge}\n{first}\n")
    assert account(train(), log).limit is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("delta = 1e-5\npurse = -1", "purse = -1"),
        ("delta = 1e-5\npurse = nan", "purse = nan"),
        ("delta = 1e-5\npurse = inf", "noise_multiplier"),
        ("purse = 1", "delta.*is required"),
        ("delta = 2\npurse = 1", "delta = 2"),
        ("delta = 1e-5\nepsilon = 1", "unknown key"),
        (PLAN.replace("0.05", "1.0"), "training.0.record_rate"),
        (PLAN.replace("60", "0"), "training.0.rounds"),
        (PLAN.replace("= 1.0", "= 0.0"), "noise_multiplier = 0"),
        (PLAN.replace("= 1.0", "= 0.001"), "plan = inf.*finite"),
        ("[[plan", "plan.*can't be read"),
    ],
)
def test_a_plan_that_promises_nothing_is_refused(
    text: str, words: str, write: Write
) -> None:
    with pytest.raises(Misconfiguration, match=words):
        PlanLimit.load(write(text))


def test_a_unit_at_several_owners_needs_the_very_rate(write: Write) -> None:
    plan = PlanLimit.load(write(PLAN + "owners_per_unit = 2\n")).plan

    def covered(owners: int, noise: float, rate: float) -> bool:
        step = poisson_gaussian(rate=rate, noise_multiplier=noise, owners=owners)
        return plan.covering(step) is not None

    assert covered(2, 1.0, 0.05)
    assert covered(2, 1.5, 0.05)
    assert not covered(2, 1.0, 0.04)
    assert not covered(1, 1.0, 0.05)
    # A question's one moves by both.
    asked = Steps({poisson_gaussian(rate=1.0, noise_multiplier=QUESTION, owners=2): 1})
    assert plan.used(asked)[0] == pytest.approx(4 / QUESTION**2)
    assert not PlanLimit.load(write(PLAN)).holds(asked)


@pytest.mark.parametrize("noise", [1.0, 1.3])
@pytest.mark.parametrize("rate", [0.03, 0.1, 0.2])
def test_what_is_covered_shows_less(noise: float, rate: float) -> None:
    """At any ε, in both directions, once and often."""
    planned = poisson_gaussian(rate=0.2, noise_multiplier=1.0)
    step = poisson_gaussian(rate=rate, noise_multiplier=noise)
    for rounds in (1, 20):
        profiles = [group_profiles(each.times(rounds), 1) for each in (planned, step)]
        for (epsilons, most), (others, deltas) in zip(*profiles, strict=True):
            least = np.interp(epsilons, others, deltas)
            inside = (epsilons > others[0]) & (epsilons < others[-1])
            assert (least <= most * (1 + 1e-3) + 1e-9)[inside].all()


# Whoever chooses as it goes


def sampled(epsilons: Floats, rate: float, noise: float) -> Floats:
    """δ(ε) of a round with the record against one without it, for any real ε."""
    ratio = np.exp(epsilons)
    above = np.maximum(ratio - (1 - rate), 1e-300)
    threshold = noise**2 * np.log(above / rate) + 0.5
    tail = norm.sf(threshold / noise)
    shifted = norm.sf((threshold - 1) / noise)
    beyond = (1 - rate) * tail + rate * shifted - ratio * tail
    delta: Floats = np.where(ratio <= 1 - rate, 1 - ratio, beyond)
    return delta


def asked(epsilons: Floats, mu: float) -> Floats:
    tail = norm.cdf(mu / 2 - epsilons / mu)
    delta: Floats = tail - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
    return delta


@pytest.mark.parametrize("first", [0.2, 0.5, 0.7])
def test_the_best_choice_after_an_answer_costs_no_more_than_the_plan(
    first: float,
) -> None:
    """And no less than either list that could have been fixed beforehand."""
    purse, rate, noise = 0.8, 0.3, 0.9
    rest = math.sqrt(purse**2 - first**2)
    plan = Steps({poisson_gaussian(rate=1.0, noise_multiplier=1 / purse): 1})
    plan[poisson_gaussian(rate=rate, noise_multiplier=noise)] = 1
    seen = np.linspace(-12, 12, 24001)
    weights = norm.pdf(seen - first) * (seen[1] - seen[0])
    losses = seen * first - first**2 / 2
    for epsilon in (0.5, 1.0, 2.0):
        left = epsilon - losses
        asks = asked(left, rest)
        trains = sampled(left, rate, noise)
        fixed = max((weights * asks).sum(), (weights * trains).sum())
        chosen = (weights * np.maximum(asks, trains)).sum()
        accountant = ExactAccountant()
        for step, count in plan.items():
            accountant.compose(step.times(count))
        assert fixed <= chosen <= accountant.delta(epsilon)


choices = st.lists(
    st.tuples(
        st.integers(0, 6), st.integers(0, 1), st.integers(0, 5), st.integers(0, 2)
    ),
    min_size=1,
    max_size=30,
)
"""Which task, which of two processes, version and m."""


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    played=choices,
    pool=st.tuples(st.floats(0.8, 3.0), st.floats(0.05, 0.4), st.integers(1, 6)),
    purse=st.floats(0.1, 1.0),
    repeats=st.integers(0, 2),
    restarts=st.sets(st.integers(0, 30)),
    last=st.permutations(range(7)),
)
def test_no_adaptive_user_passes_the_plan(
    played: list[tuple[int, int, int, int]],
    pool: tuple[float, float, int],
    purse: float,
    repeats: int,
    restarts: set[int],
    last: list[int],
) -> None:
    """Whatever it plays first, it then takes all that is left, in any order of tasks."""
    noise, rate, rounds = pool
    tasks = (
        train(9, noise, rate),
        train(9, noise * 1.2, rate * 0.7),
        train(9, noise * 0.9, rate * 0.5),
        ask(4.0),
        ask(2.5),
        train(9, noise * 0.6, rate),
        train(9, noise, rate * 1.6),
    )
    played += [(which, 0, version, 0) for which in last for version in range(6, 30)]
    with in_memory() as folder:
        log, file = Path(folder) / "participations.log", Path(folder) / "plan.toml"
        training = f"""
            [[training]]
            noise_multiplier = {noise}
            record_rate = {rate}
            rounds = {rounds}
            repeats = {repeats}

            [[training]]
            noise_multiplier = {noise * 0.8}
            record_rate = {rate * 0.6}
            rounds = 2
        """
        file.write_text(f"delta = 1e-5\npurse = {purse}\n{training}", encoding="utf-8")
        promised = PlanLimit.load(file)
        opened: dict[tuple[int, int], OwnAccount] = {}
        took: dict[tuple[int, int], int] = {}
        for number, (which, process, version, m) in enumerate(played):
            if number in restarts:
                opened.pop((which, process), None)
            with suppress(Misconfiguration, BudgetExceeded):
                if (which, process) not in opened:
                    opened[which, process] = account(tasks[which], log, file)
                opened[which, process].charge(version, m)
                took[which, version] = max(m, took.get((which, version), 0))
        events = Steps()
        chosen = Steps()
        for (which, _), m in took.items():
            step = Run.of(tasks[which]).step(Adversary.ONE_SERVER)
            sigma = step.noise_multiplier
            events[replace(step, noise_multiplier=sigma / math.sqrt(1 + m))] += 1
            chosen[step.times(1)] += 1
            chosen[replace(step, rate=1.0)] += m
        # As a list, and as whoever chose the repeats.
        for steps in (events, +chosen):
            assert exact_epsilon(steps, DELTA) <= promised.epsilon * (1 + 1e-3)
        # The file says the same to whoever reads it next.
        if took:
            assert Account(log).events() == events
            assert promised.holds(+chosen)
