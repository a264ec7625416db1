"""Whatever was released, lost, put back and learned again, all accounts of it agree.

Those are report, ledgers, summary and owners' accounts. And none says less than a plain
transform makes of the shares that left.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import small_task
from tests.rig.commands import document
from tests.rig.meeting import ANN, BEN, CLEO, SERVERS, Cuts, Servers
from tests.rig.memory import in_memory
from tests.rig.plain_losses import plain_epsilon

from precad.aggregator.store import read_training
from precad.aggregator.store.schema import Permission
from precad.aggregator.training.recovery import Remedy
from precad.cli.report_page import Report
from precad.cli.report_sources import gather
from precad.client.own_account import OwnAccount
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

OWNERS = (ANN, BEN, CLEO)
ROUNDS = 8
VALID = st.lists(st.sampled_from(OWNERS), min_size=1, unique=True).map(sorted)
EACH = st.sampled_from(SERVERS)
HISTORIES = st.lists(
    st.one_of(
        # Who counts; where the servers' links break, if they do.
        st.tuples(st.just("attempt"), VALID, st.sampled_from([None, 1, 2, 3])),
        # Who alone is prepared: the attempt is voided.
        st.tuples(st.just("void"), VALID, EACH),
        # A share may have left, and one server has lost it: both operators give it up.
        st.tuples(st.just("lose"), VALID, EACH),
        # Which server is put back, how many copies ago, whether the journal is lost.
        st.tuples(st.just("restore"), EACH, st.integers(0, 4), st.booleans()),
    ),
    min_size=2,
    max_size=9,
)
Left = Mapping[tuple[ClientId, int], set[int]]


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task(4, {"privacy.client_clip": 2.0, "training.rounds": ROUNDS})


class History:
    """Two servers' real stores and recovery, three owners' accounts, and what left."""

    def __init__(self, task: Task, folder: Path) -> None:
        self.task, self.servers = task, Servers(task, folder)
        rate = task.privacy.record_rate
        roster = Roster({owner: Enrolment(owner, 100, rate) for owner in OWNERS})
        for role in SERVERS:
            enrolment = self.servers.sessions[role].store.enrolment
            for claim in roster.values():
                enrolment.claim(claim)
            enrolment.freeze(roster)
        self.copies = {role: [self.servers.copy(role)] for role in SERVERS}
        self.accounts = {
            owner: OwnAccount(task, task.privacy.record_rate, None, None)
            for owner in OWNERS
        }
        self.left = defaultdict[tuple[ClientId, int], set[int]](set)
        self.in_vain = defaultdict[ClientId, set[int]](set)
        """Versions that an owner counted an update for, and no server did since."""
        self.number = 0

    @property
    def over(self) -> bool:
        return self.servers.versions()[0] >= ROUNDS

    def share(self, valid: Iterable[ClientId]) -> int:
        """Owners count their update before they send it, with the m that both servers sign."""
        version = self.servers.versions()[0]
        stores = [self.servers.sessions[role].store for role in SERVERS]
        for owner in valid:
            charged = [s.ledger.charges_in(version).get(owner, 0) for s in stores]
            self.accounts[owner].charge(version, max(charged))
        return version

    def attempt(self, valid: tuple[ClientId, ...], cuts: Cuts, **prepared: Any) -> None:
        version = self.share(valid)
        self.servers.attempt(self.number, valid=tuple(valid), cuts=cuts, **prepared)
        for owner in valid:
            if prepared:
                self.in_vain[owner].add(version)
            else:
                self.in_vain[owner].discard(version)
                self.left[owner, version].add(self.number)
        self.number += 1

    def play(self, kind: str, *values: Any) -> None:
        match kind:
            case "attempt" if not self.over:
                self.attempt(values[0], (values[1], values[1]))
            case "void" if not self.over:
                self.attempt(values[0], (None, None), prepared=(values[1],))
            case "lose" if not self.over:
                backup = self.servers.copy(values[1])
                self.attempt(values[0], (2, 2))
                self.servers.put_back(values[1], backup, journal=True)
                for role in SERVERS:
                    store = self.servers.sessions[role].store
                    version = self.servers.versions()[0]
                    store.versions.allow(Permission.WRITE_OFF, version, self.number)
            case "restore":
                role, age, journal = values
                copies = self.copies[role]
                backup = copies[max(0, len(copies) - 1 - age)]
                self.servers.put_back(role, backup, journal=journal)

    def mend(self) -> None:
        assert self.servers.mend() == [Remedy.NOTHING] * 2
        for role in SERVERS:
            self.copies[role].append(self.servers.copy(role))

    def report(self, *roles: Role) -> Report:
        return gather([str(self.servers.folder / role.value) for role in roles])

    def truth(self, owner: ClientId) -> tuple[int, int, float]:
        """T_i, the most releases of a version, and at most ε of the shares that left."""
        releases = [len(them) for (who, _), them in self.left.items() if who == owner]
        sigma, rate = self.task.privacy.noise_multiplier, self.task.privacy.record_rate
        steps = Counter(sigma / count**0.5 for count in releases)
        epsilon = plain_epsilon(rate, steps, self.task.privacy.delta) if steps else 0.0
        return len(releases), max(releases, default=0), epsilon


def require_no_less(history: History, found: Report) -> None:
    """Of every owner, against one server and over the rounds against the models."""
    truths = [history.truth(owner) for owner in OWNERS]
    by_server, _, of_owner = found.guarantees[:3]
    assert by_server.epsilon is not None
    assert of_owner.epsilon is not None
    assert by_server.participations >= max(taken for taken, _, _ in truths)
    assert by_server.epsilon >= max(epsilon for _, _, epsilon in truths)
    versions = {version for _, version in history.left}
    noise = history.task.privacy.noise_multiplier * 2**0.5
    noise *= history.task.mechanism.sensitivity_ratio
    assert of_owner.participations >= len(versions)
    delta = history.task.privacy.delta
    assert of_owner.epsilon >= plain_epsilon(1.0, {noise: len(versions)}, delta)
    for some, most in zip(found.guarantees[:3], found.guarantees[3:], strict=False):
        assert (most.epsilon or 0) >= (some.epsilon or 0)


@settings(
    max_examples=10,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(script=HISTORIES)
def test_no_history_makes_a_statement_say_less_than_what_left(
    task: Task, script: list[Any]
) -> None:
    with in_memory() as name:
        history = History(task, Path(name))
        history.play("attempt", OWNERS[:2], None)
        for event in script:
            history.play(*event)
            if event is script[-1] and all(history.servers.versions()):
                # Before they have met: one server's database may be an old copy.
                require_no_less(history, history.report(*SERVERS))
            history.mend()
        history.servers.close()
        shown = {
            role: document("ledger", "show", history.servers.folder / role.value)
            for role in SERVERS
        }
        a, b = (shown[role]["clients"] for role in SERVERS)
        assert a == b
        by_owner = {row["client"]: row for row in a}
        repeated = False
        for owner in OWNERS:
            taken, releases, epsilon = history.truth(owner)
            account = history.accounts[owner]
            row = by_owner[owner.name]
            assert row["participations"] >= taken
            assert min(row["epsilon"], account.epsilon()) >= epsilon
            assert account.epsilon() >= row["epsilon"] * (1 - 1e-12)
            if not history.in_vain[owner]:
                assert account.participations == row["participations"]
                assert account.epsilon() == pytest.approx(row["epsilon"], rel=1e-12)
            repeated |= releases > 1
        if not history.servers.versions()[0]:
            return
        reports = [
            history.report(*roles) for roles in ((*SERVERS,), *((r,) for r in SERVERS))
        ]
        for role, found in zip((None, *SERVERS), reports, strict=True):
            require_no_less(history, found)
            assert found.guarantees == reports[0].guarantees, role
            assert found.training == reports[0].training, role
            assert not found.differences
        most = max(row["epsilon"] for row in a)
        said = reports[0].guarantees[0].epsilon
        assert said is not None
        # The report tells nobody's repeats: all rounds count as the one with most.
        assert said >= most
        assert repeated or said == pytest.approx(most, rel=1e-12)
        for role in SERVERS:
            view = read_training(
                f"sqlite:///{history.servers.folder}/{role.value}/state.db"
            )
            assert view.rounds == reports[0].guarantees[2].participations
            assert len(view.versions) == history.servers.versions()[0]
