"""Whatever servers sign, and whenever processes die or run at once: the account is
never below what the openings say, and never above its limit.
"""

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import TaskMaker
from tests.rig.accounts import composed
from tests.rig.memory import in_memory
from tests.rig.scripted_servers import Event, Killed, Open, Over, Owner, Script

from precad.accounting.events import poisson_gaussian
from precad.client.own_account import OwnAccount
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

quick = settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def tasks(make_task: TaskMaker) -> tuple[Task, Task]:
    return make_task(4), make_task(
        4, {"privacy.noise_multiplier": 3.0, "privacy.delta": 1e-6}
    )


def composed_epsilon(
    tasks: Sequence[Task], admitted: dict[tuple[int, int], int], delta: float
) -> float:
    sigmas = [
        tasks[task].privacy.noise_multiplier / math.sqrt(1 + m)
        for (task, _), m in admitted.items()
    ]
    steps = [poisson_gaussian(rate=0.2, noise_multiplier=sigma) for sigma in sigmas]
    return composed(*steps).epsilon(delta)


signed = st.integers(0, 3)
attempts = st.lists(
    st.tuples(st.booleans(), st.booleans(), signed, signed), min_size=1, max_size=8
)
"""For each attempt: whether its version is a new one, whether it is drawn, and m at A
and at B."""


@quick
@given(
    script=attempts, kills=st.sets(st.integers(0, 150), max_size=4), cover=st.booleans()
)
def test_no_sequence_of_openings_costs_more_than_the_account_says(
    make_task: TaskMaker,
    script: list[tuple[bool, bool, int, int]],
    kills: set[int],
    cover: bool,  # noqa: FBT001 -- hypothesis gives it by name
) -> None:
    task = make_task(4, {"privacy.cover_uploads": cover})
    events: list[Event] = []
    version = -1
    for attempt, (new, drawn, a, b) in enumerate(script):
        if new and version >= 0:
            events.append(Over(attempt - 1, version))
        version += new or version < 0
        events.append(Open(attempt, version, selected=drawn, charges=(a, b)))
    with in_memory() as folder:
        one = Owner(Script(task, events), Path(folder))
        steps = [0]

        def die(_name: str) -> None:
            steps[0] += 1
            if steps[0] in kills:
                raise Killed

        one.script.on_step = die
        one.run_until_done()
        named = {
            each.attempt: max(each.charges) for each in events if isinstance(each, Open)
        }
        largest: dict[int, int] = defaultdict(int)
        shared = [each for each in one.script.sent if each.x.any()]
        for each in shared:
            # No server's word makes more releases of it than this owner has shared it
            # for.
            attempts_of = {s.attempt for s in shared if s.version == each.version}
            before = sum(attempt < each.attempt for attempt in attempts_of)
            m = min(named[each.attempt], before)
            largest[each.version] = max(largest[each.version], m)
        account = one.open_account()
        released = {(0, version): m for version, m in largest.items()}
        cost = composed_epsilon((task,), released, task.privacy.delta)
        assert account.epsilon() >= cost * (1 - 1e-12)
        assert all(account.charged(version, m) for version, m in largest.items())
        updates, zeros = defaultdict(set), bytes(8 * 4)
        for each in one.script.sent:
            updates[each.version].add(each.x.tobytes())
        assert all(len(some - {zeros}) <= 1 for some in updates.values())
        assert cover or not any(zeros in some for some in updates.values())


charges = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 1), st.integers(0, 6), st.integers(0, 4)
    ),
    max_size=30,
)  # Which task, which of two processes, version and m


@quick
@given(plan=charges, limit=st.floats(1.2, 3.0), reopen=st.sets(st.integers(0, 30)))
def test_no_interleaving_of_tasks_and_processes_passes_the_limit(
    tasks: tuple[Task, Task],
    plan: list[tuple[int, int, int, int]],
    limit: float,
    reopen: set[int],
) -> None:
    with in_memory() as folder:
        path = Path(folder) / "participations.log"
        mine = ClientId("ward-1")

        def opened(which: int) -> OwnAccount:
            return OwnAccount(
                tasks[which], 0.2, None if path.exists() else limit, path, mine
            )

        # Those of the first round have seen no account yet.
        processes = {(t, p): opened(t) for t in (0, 1) for p in (0, 1)}
        first = opened(0)
        first.charge(100)
        admitted: dict[tuple[int, int], int] = {(0, 100): 0}
        for number, (which, process, version, re_releases) in enumerate(plan):
            if number in reopen and not (which and first.whole_task()):
                processes[which, process] = opened(which)
            own = processes[which, process]
            with contextlib.suppress(BudgetExceeded):
                own.charge(version, re_releases)
                before = admitted.get((which, version), 0)
                admitted[which, version] = max(before, re_releases)
        # What is admitted is never taken back: the last sum is the largest.
        assert composed_epsilon(tasks, admitted, 1e-5) <= limit
        if first.whole_task():
            assert not any(task for task, _ in admitted)
            with pytest.raises(Misconfiguration, match="all of it went to task"):
                opened(1)
        for which in (0,) if first.whole_task() else (0, 1):
            final = opened(which)
            cost = composed_epsilon(tasks, admitted, tasks[which].privacy.delta)
            assert final.epsilon() == pytest.approx(cost)
            assert all(
                final.charged(v, m) for (t, v), m in admitted.items() if t == which
            )


@quick
@given(cuts=st.lists(st.integers(1, 120), max_size=6))
def test_lines_cut_short_cost_and_hide_nothing(
    tasks: tuple[Task, Task], cuts: list[int]
) -> None:
    with in_memory() as folder:
        path = Path(folder) / "participations.log"
        opened = partial(OwnAccount, tasks[0], 0.2, None, path)
        for version, cut in enumerate(cuts):
            opened().charge(2 * version)
            whole = path.read_bytes()
            opened().charge(2 * version + 1)
            line = path.read_bytes()[len(whole) :]
            path.write_bytes(whole + line[: min(cut, len(line) - 1)])
        assert all(opened().charged(2 * version) for version in range(len(cuts)))
        assert opened().participations <= 2 * len(cuts)


@quick
@given(
    charges=st.lists(st.tuples(st.integers(0, 9), signed, st.booleans()), max_size=25),
    counts=st.lists(st.integers(0, 10), max_size=5),
)
def test_what_an_account_lacks_is_read_off_sums_of_its_charges(
    tasks: tuple[Task, Task],
    charges: list[tuple[int, int, bool]],
    counts: list[int],
) -> None:
    """A look in every round would else go through all charges: 18 ms at 20,000."""
    account = OwnAccount(tasks[0], 0.2, None, None, ClientId("ward"))
    known: dict[int, float] = {}
    for version, m, zeros in charges:
        if zeros:
            account.cover(version)
        else:
            account.charge(version, m)
        known[version] = max(known.get(version, 0), math.inf if zeros else m)
    lacks = any(
        sum(own_m >= m for own_m in known.values()) < count
        for m, count in enumerate(counts)
    )

    class Unread(dict[Any, Any]):
        def values(self) -> NoReturn:
            raise AssertionError("looks through all charges")

    account._account.charges = Unread(account._account.charges)
    assert account.lacks(counts) == lacks
