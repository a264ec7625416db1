"""What K clients that dawdle, alone or by turns, cost T attempts at most; and who is left out."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.rig.clock import LonelyClock
from tests.rig.keys import verifier
from tests.rig.submissions import MODEL, pair_of, upload
from tests.rig.tasks import task_with

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.inbox import EARNED, GRACE, SPARE, Inbox, Patience
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Role
from precad.norm_check.proof_submission import AnySubmission

COLLECT_S = 60.0
TASK = task_with({"deadlines.collect": COLLECT_S}, 8)
T = 40
HONEST = [ClientId(f"ward-{number}") for number in range(6)]
BAD_LINE = HONEST[-1]
BAD_LINE_S = 40.0  # The others take one to five seconds
CROOKS = [ClientId(f"crook-{number}") for number in range(5)]
Look = Callable[[ClientId], bool]
"""Whether a client is waited for, and an attempt may last to its end: the worst case."""
Way = Callable[[int, int, Look], float | None]
"""When a misbehaving client's submission comes, by attempt and its own number; or never."""


@cache
def sent(client: ClientId, attempt: int) -> tuple[AnySubmission, AnySubmission]:
    return pair_of(TASK, client, attempt)


def nobody(_client: ClientId) -> bool:
    return False


class Rounds:
    """One server's collections, attempt after attempt, of those who send."""

    def __init__(self, role: Role, folder: Path) -> None:
        self.role = role
        self.clock = LonelyClock()
        self.inbox = Inbox(role, TASK, verifier(), folder, self.clock)
        self.patience = self.inbox._patience
        self.attempt = 0
        self.missed: Counter[ClientId] = Counter()
        """In a row; who sent too late has missed none."""
        self.counted: dict[ClientId, int] = {}
        self.beyond: list[float] = []
        """Of each attempt, seconds beyond ``GRACE`` times what most took."""

    def looks(self, client: ClientId) -> bool:
        return self.missed[client] < 2 and self.patience.pays

    def play(self, times: dict[ClientId, float | None]) -> None:
        """By looking whether all are there; A holds what isn't sent to B."""
        began = self.clock.now()
        self.inbox.cancel()
        self.inbox.open(
            Opened(
                attempt=self.attempt,
                version=2,
                cohort=tuple(sorted(times)),
                model=MODEL,
                counted=frozenset(),
                asleep=frozenset(c for c, times in self.missed.items() if times >= 2),
            )
        )
        self.inbox.close_at(began + COLLECT_S)
        coming = sorted((s, client) for client, s in times.items() if s is not None)
        expected = [client for client in times if self.missed[client] < 2]
        most = len(expected) // 2 + 1
        most_s = [at for at, client in coming if client in expected][most - 1]
        self._until_over(began, coming, set(times))
        lasted = self.clock.now() - began
        self.beyond.append(max(0.0, lasted - GRACE * most_s))
        for client, outcome in self.inbox.close().items():
            there = not isinstance(outcome, Rejection)
            self.counted[client] = self.counted.get(client, 0) + there
            self.missed[client] = 0 if there else self.missed[client] + 1
        for at, client in coming:
            if at > lasted:
                self._arrives(began, max(at, lasted), client)
                self.missed[client] = 0
        self.attempt += 1

    def _until_over(
        self,
        began: float,
        coming: list[tuple[float, ClientId]],
        everybody: set[ClientId],
    ) -> None:
        queue = [*coming]
        while not self.inbox.over(everybody, nobody):
            elapsed = self.clock.now() - began
            if elapsed >= COLLECT_S:
                return
            if queue and queue[0][0] <= elapsed + 0.25:
                self._arrives(began, *queue.pop(0))
            else:
                self.clock.sleep(0.25)

    def _arrives(self, began: float, at: float, client: ClientId) -> None:
        self.clock.sleep(max(0.0, began + at - self.clock.now()))
        submission = sent(client, self.attempt)[self.role is Role.SERVER_B]
        try:
            upload(self.inbox, submission)
        except RejectedSubmission as late:
            if late.reason is not Rejection.WRONG_ATTEMPT:
                raise


def by_turns(attempt: int, number: int, _look: Look) -> float | None:
    return None if attempt % 5 == number else 1.0


def while_it_costs(attempt: int, number: int, look: Look) -> float | None:
    """It knows what the server keeps, and one who is waited for is missing whenever it may."""
    awaited = [crook for crook in CROOKS if look(crook)]
    missing = awaited[attempt % len(awaited)] if awaited else None
    return None if CROOKS[number] == missing else 0.0


def at_the_last_moment(_attempt: int, _number: int, _look: Look) -> float | None:
    return COLLECT_S - 0.5


def one_then_all(attempt: int, number: int, _look: Look) -> float | None:
    return None if attempt % 4 == 0 or attempt % 5 == number else 0.0


WAYS = [by_turns, while_it_costs, at_the_last_moment, one_then_all]


@pytest.fixture(params=[Role.SERVER_A, Role.SERVER_B], ids=["a", "b"])
def rounds(request: pytest.FixtureRequest, tmp_path: Path) -> Rounds:
    return Rounds(request.param, tmp_path / "spool")


def played(rounds: Rounds, way: Way, attempts: int, *, slow_s: float = 4.0) -> None:
    for attempt in range(attempts):
        times: dict[ClientId, float | None] = {
            client: 1.0 + number for number, client in enumerate(HONEST)
        }
        times[BAD_LINE] = slow_s
        for number, crook in enumerate(CROOKS):
            times[crook] = way(attempt, number, rounds.looks)
        rounds.play(times)


@pytest.mark.parametrize("way", WAYS)
def test_what_clients_that_dawdle_cost_has_a_bound_however_many_they_are(
    rounds: Rounds, way: Way
) -> None:
    """(SPARE + EARNED·T) / (1 + EARNED) of ``deadlines.collect``, as docs/protocol.md says."""
    played(rounds, way, T)
    bound = (SPARE + EARNED * T) / (1 + EARNED)
    assert bound == pytest.approx(2.4 + T / 5)
    # One look may come a quarter of a second late.
    assert sum(rounds.beyond) <= bound * COLLECT_S + 0.25 * T
    # No owner pays for it that takes at most ``GRACE`` times as long as the fastest.
    assert {rounds.counted[client] for client in HONEST[:3]} == {T}


def test_five_that_take_turns_cost_four_attempts_of_eight_and_then_one_of_five(
    rounds: Rounds,
) -> None:
    """Each misses one in five: by its own absences each is worth waiting for."""
    played(rounds, by_turns, 28)
    long = [attempt for attempt, s in enumerate(rounds.beyond) if s > COLLECT_S / 2]
    assert (long[:3], len([each for each in long if each < 8])) == ([0, 1, 2], 4)
    assert len(long) == 4 + 20 / 5


@pytest.mark.parametrize("way", [by_turns, while_it_costs])
def test_an_owner_on_a_bad_line_is_waited_for_in_one_attempt_of_five_at_least(
    tmp_path: Path, way: Way
) -> None:
    rounds = Rounds(Role.SERVER_A, tmp_path / "spool")
    played(rounds, way, T, slow_s=BAD_LINE_S)
    assert rounds.counted[BAD_LINE] >= T / 5


def test_without_anybody_who_misbehaves_a_slow_owner_is_in_every_attempt(
    tmp_path: Path,
) -> None:
    """It takes three times as long as most, and a fifth of ``deadlines.collect`` more."""
    rounds = Rounds(Role.SERVER_A, tmp_path / "spool")
    played(rounds, lambda *_: 1.0, T, slow_s=3.0 + COLLECT_S / 5)
    assert rounds.counted[BAD_LINE] == T


def test_a_wait_is_paid_for_by_its_length_and_a_whole_one_must_be_left() -> None:
    patience = Patience()
    for _ in range(3):
        patience.waited(1.0)
    assert not patience.pays
    for _ in range(4):
        patience.waited(0.0)
    assert patience.pays
    for _ in range(100):
        patience.waited(EARNED / (1 + EARNED))
    assert patience.pays
