"""A malicious server in simulated time: A and B in turn, deviating in every message.

The bad server is a real one with changes (``cheat.py``), so that it knows all that a
server knows. Two owners hold two candidate updates, as far apart as the bound allows,
in every round: what the honest server says of the one it must say of the other.
Whatever the bad one does, all that it hears before the noisy share it could have
computed itself; it ends in a named fault, a refused submission or a round as if nothing
had been; and with an honest partner again the training goes on. The last tests say what
holds of the noisy share, which nobody can check.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.faults import deviations as ends
from tests.faults.cheat import candidate, wrap
from tests.faults.conftest import quick_folder, small_task
from tests.faults.deviations import (
    DEVIATIONS,
    POISON,
    SERVED,
    STEPS,
    Deviation,
    deviations_of,
)
from tests.faults.foreseen import CANDIDATES, Known, messages
from tests.faults.invariants import check_honest, shares_of
from tests.faults.simulated_owner import Calls
from tests.faults.simulated_server import SERVERS, Server
from tests.faults.world import World
from tests.rig.documents import Document

from precad.aggregator.training.session import Event, RoundOpened
from precad.client.participation import RoundView
from precad.client.pending_update import Pair
from precad.common.fixed_point import squared_norm
from precad.common.identifiers import Digest, Role
from precad.common.ring import RingVector
from precad.common.submission import SignedHeader
from precad.common.task import Task
from precad.norm_check.proof_submission import ForProof

A, B = SERVERS
ENDLESS = 100_000
PARTS = 4
FAULTS = re.compile(r"training stopped: \S|; trying again for")
# Where the check has a part.
OF_THE_CHECK = {"nonce", "decide", "valid-set", "body", "alike"}
MADE = re.compile(r"version \d+, attempt \d+: (\d+) of (\d+) submissions count")


def task_of(validation: str) -> Task:
    changes = {"privacy.client_rate": 1.0, "enrolment.clients": len(CANDIDATES)}
    return small_task(ENDLESS, validation, changes, dimension=6)


class Candidate(Calls):
    def compute(self, view: RoundView) -> RingVector:  # noqa: ARG002 -- as every owner's
        with self.world.step("compute"):
            return candidate(self.task, CANDIDATES[self.client.name])

    def prepare(
        self,
        *,
        version: int,
        attempt: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        pair = super().prepare(
            version=version, attempt=attempt, model=model, x=x, proof=proof
        )
        header = pair[0].header
        body = (
            header.body_digest
            if isinstance(header, SignedHeader)
            else header.update_digest
        )
        signed = {"commitment": str(header.whole_digest), "body": str(body)}
        assert isinstance(self.world, CheatedWorld)
        self.world.known.take([signed | {"context": str(pair[0].context.digest)}])
        return pair


class CheatedWorld(World):
    """Deviations of one server, each followed by a version with an honest partner."""

    calls = Candidate

    def __init__(
        self,
        folder: Path,
        seed: int,
        cheater: Role,
        check: str,
        names: Sequence[str],
        lasts: int,
    ) -> None:
        # Both clients are drawn every time; a body is longer than its salt.
        super().__init__(task_of(check), folder, seed, slowest_start_s=1.0)
        self.turns.limit_s = 1000.0 * (len(names) + 1)
        self.cheater, self.cheaters = cheater, {cheater}
        self.honest = B if cheater is A else A
        self.known = Known(self.honest, self.task, self.coin_key(self.honest))
        self.words = (
            0  # Of submissions, that the honest server said and the bad one had known
        )
        self.said: list[
            str
        ] = []  # What anybody logged since the newest deviation began
        self.sent = defaultdict[Role, list[Document]](
            list
        )  # What they noted since then
        self.noisy = defaultdict[int, dict[Role, bytes]](
            dict
        )  # Shares that left, by attempt
        self.deviation = ""  # The one that is in force
        self.newest = (  # The one whose end is still to be seen to cost nothing further
            ""
        )
        self._waiting, self._lasts = list(names), lasts
        self._did = self._all_over = False
        self._begun = (
            False  # Whether the honest one opened a version since both are honest again
        )
        self._made = 0

    @property
    def now(self) -> Deviation:
        """What the party whose turn it is does otherwise."""
        cheats = self.deviation and self.turns.life.party == self.cheater.value
        return DEVIATIONS[self.deviation] if cheats else Deviation()

    def did(self) -> None:
        self._did = True

    def note(self, **given: object) -> None:
        what: Document = given
        role = Role(self.turns.life.party)
        self.sent[role].append(what)
        if what.get("sent") == "noisy-share":
            self.noisy[what["attempt"]][role] = bytes.fromhex(what["payload"])
        if role is self.cheater:
            self.known.take([what])

    def published(self, event: Event) -> None:
        if (
            isinstance(event, RoundOpened)
            and self.turns.life.party == self.honest.value
        ):
            self._begun = True

    def stopped(self, server: Server) -> None:
        assert "internal error" not in server.session.progress.error
        self._crash(server.life)

    def logged(self, line: str) -> None:
        party = self.turns.life.party
        self.said.append(f"{party}: {line}")
        if party != self.honest.value:
            return
        made, fault = MADE.search(line), FAULTS.search(line)
        if self.deviation:
            if fault:
                assert self._did, f"before any deviation: {line}"
                self._ends(ends.FAULT, line)
            elif made:
                self._made += 1
                assert self._made < self._lasts + 3, "no server came to it"
                # What is said when all is done can be noticed in the next round at the
                # earliest.
                late = self.deviation.startswith("kept ")
                if self._did and self._made >= self._lasts + late:
                    self._ends(ends.DONE if made[1] == made[2] else ends.REFUSED, line)
        elif made and self._begun and made.groups() == ("2", "2"):
            self._go_on()

    def _ends(self, how: str, line: str) -> None:
        deviation, self.deviation, self._begun = self.deviation, "", False
        assert how in ends.ends_of(deviation, self.task.validation), f"{how}: {line}"
        if deviation in ends.REFUSALS:
            assert f"{ends.REFUSALS[deviation]} of 2 submissions count" in line

    def _go_on(self) -> None:
        if self.newest:
            heard = list(messages(self.sent[self.honest]))
            own_secret = not self.newest.startswith("set-secret")
            if self.task.validation == "proof":
                assert not self.known.lacks(heard, own_secret=own_secret)
                self.words += self.known.foresaw(heard, own_secret=own_secret)
        self.said.clear()
        self.sent.clear()
        if not self._waiting:
            self._all_over = True
            return
        self.newest = self.deviation = self._waiting.pop(0)
        self._did, self._made = False, 0
        if not ends.IN_SET_UP.isdisjoint(DEVIATIONS[self.deviation].sends or ()):
            # What is said when the servers meet comes again.
            for role in SERVERS:
                self.turns.at(0.0, partial(self.turns.kill, self.servers[role].life))

    def _over(self) -> bool:
        return self._all_over


@contextmanager
def cheated(
    seed: int,
    cheater: Role,
    deviations: Sequence[str],
    validation: str = "proof",
    lasts: int = 1,
) -> Iterator[CheatedWorld]:
    log = logging.getLogger("precad")
    with quick_folder() as folder, pytest.MonkeyPatch.context() as patch:
        world = CheatedWorld(folder, seed, cheater, validation, deviations, lasts)
        wrap(world, patch.setattr)
        level, lines = log.level, logging.Handler(logging.INFO)
        patch.setattr(lines, "emit", lambda record: world.logged(record.getMessage()))
        patch.setattr(log, "handlers", [lines])
        patch.setattr(log, "propagate", False)
        log.setLevel(logging.INFO)
        try:
            world.run()
            check_honest(world)
            yield world
        except BaseException as error:
            error.add_note(f"seed {seed}, at the deviation: {world.newest}")
            error.add_note("\n".join(world.said[-40:]))
            raise
        finally:
            log.setLevel(level)


@pytest.fixture(params=SERVERS)
def cheater(request: pytest.FixtureRequest) -> Role:
    return Role(request.param)


def test_the_two_candidates_are_as_far_apart_as_the_bound_allows() -> None:
    task = task_of("proof")
    norms = {
        which: squared_norm(candidate(task, which)) for which in CANDIDATES.values()
    }
    assert norms == {"nothing": 0, "longest": task.mechanism.bound**2}


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_a_server_does_it_hears_what_it_could_have_computed(
    cheater: Role, part: int
) -> None:
    deviations = deviations_of(cheater, "proof", workers=False)[part::PARTS]
    with cheated(part, cheater, deviations) as world:
        assert world.words > 0, "no deviation got as far as words"


def test_under_the_other_check_too_whatever_a_server_says_ends_well(
    cheater: Role,
) -> None:
    """What the honest one sends of a comparison on shares that nobody promises."""
    deviations = [
        name
        for name in deviations_of(cheater, "crypten", workers=False)
        if DEVIATIONS[name].asks
        or not OF_THE_CHECK.isdisjoint(DEVIATIONS[name].sends or ())
    ]
    with cheated(6, cheater, deviations, "crypten") as world:
        assert {"decide never", "nonce with a bit flipped"} <= set(deviations)
        assert world.words == 0


def together(world: CheatedWorld, shares: Mapping[Role, bytes]) -> RingVector:
    return shares_of(world).joined(shares[A], shares[B])


def test_without_the_bad_servers_noise_the_honest_ones_is_all_there(
    cheater: Role,
) -> None:
    """Who leaves its noise out gets the sum with the other's whole noise."""
    with cheated(7, cheater, ["no noise of its own"], lasts=3) as world:
        of_updates = sum(candidate(world.task, which) for which in CANDIDATES.values())
        drawn = {noise.tobytes() for noise in world.seen.noise[world.honest]}
        noises = [
            together(world, shares) - of_updates for shares in world.noisy.values()
        ]
        assert len([noise for noise in noises if noise.tobytes() in drawn]) == 3


def test_where_a_server_serves_other_bytes_owners_go_to_the_other_and_on(
    cheater: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    log = SimpleNamespace(warning=lambda text, *given: warned.append(text % given))
    monkeypatch.setattr("precad.client.both_servers.log", log)
    with cheated(9, cheater, [SERVED], lasts=3) as world:
        charges = world.charges(world.honest)
        assert len([n for n in world.noisy if charges[n] == set(CANDIDATES)]) >= 3
    assert len(warned) >= 3
    passed_over = rf"{cheater.title} served model \d+ with digest .*; fetching model"
    assert all(re.search(passed_over, each) for each in warned)


@pytest.mark.parametrize("deviation", STEPS)
def test_where_a_server_serves_another_step_owners_fetch_the_model_and_go_on(
    cheater: Role, deviation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it signs the right digest or another one; each owner says so once."""
    warned: list[str] = []
    log = SimpleNamespace(warning=lambda text, *given: warned.append(text % given))
    monkeypatch.setattr("precad.client.server_statements.log", log)
    with cheated(10, cheater, [deviation], lasts=3) as world:
        charges = world.charges(world.honest)
        assert len([n for n in world.noisy if charges[n] == set(CANDIDATES)]) >= 3
        before_and_after = world.seen.stepped
    assert before_and_after
    of_steps = [each for each in warned if "fetching whole models" in each]
    served = deviation == "another step served"
    assert served == any("isn't what both signed" in each for each in of_steps)


def test_a_server_that_speaks_last_chooses_the_model_and_owners_go_on_all_the_same(
    cheater: Role,
) -> None:
    """θ is whatever sums within ±M make of it: nothing an owner shows may depend on it.

    What the honest server has let go by then is its sum with its noise, once a version;
    what θ becomes is a function of that.
    """
    with cheated(8, cheater, ["the last word on the model"], lasts=4) as world:
        chosen = [
            n
            for n, shares in world.noisy.items()
            if (together(world, shares) == POISON).all()
        ]
        assert len(chosen) == 4
        charges = world.charges(world.honest)
        assert all(charges[number] == set(CANDIDATES) for number in chosen)
