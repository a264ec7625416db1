"""A malicious server on real processes: A and B in turn, deviating in every message
that it sends.

Four or five real processes over TLS, as an operator starts them; the bad one is the
real server with changes (`cheat.py`), so that it knows all that a server knows. Two
owners hold two candidate updates, as far apart as the bound allows, side by side in
every round: what the honest server says of the one it must say of the other. Whatever
the bad one does:

- all that the honest server sends before its noisy share the bad one could have
  computed itself;
- it ends in a named fault, a refused submission, or a round as if nothing had been;
- with an honest partner again the training goes on.

The same in simulated time, and what holds of its noisy share, which nobody can check,
is ``tests/faults/test_cheating_servers.py``.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.faults import deviations, processes
from tests.faults.deviations import DONE, FAULT, REFUSALS, REFUSED, ends_of
from tests.faults.foreseen import CANDIDATES, Known, messages
from tests.faults.processes import SERVER_ROLES, FaultyDeployment, Operators, kill_all
from tests.rig.documents import Document

from precad.aggregator.rounds.aggregator import CoinKey
from precad.common.identifiers import Role
from precad.common.identity.credentials import read_coin_key

A, B = SERVER_ROLES


class Site:
    def __init__(self, folder: Path, cheater: str) -> None:
        self.deployment = FaultyDeployment(folder, validation="proof", poisoned=True)
        self.cheater = cheater
        self.honest = B if cheater == A else A
        self._seen = 0
        self._log = 0
        self._stops: Counter[str] = Counter()

    def start(self) -> None:
        for name, which in CANDIDATES.items():
            self._cheat(name).write_text(which, encoding="utf-8")
        self.deployment.start_all()
        self.goes_on()

    def cheats(self, deviation: str) -> None:
        draft = self._cheat("draft")
        draft.write_text(deviation, encoding="utf-8")
        draft.replace(self._cheat(self.cheater))

    def cheats_no_more(self) -> None:
        self._cheat(self.cheater).unlink()

    def _cheat(self, name: str) -> Path:
        return self.deployment.orders / f"{name}.cheat"

    def heard(self, party: str) -> list[Document]:
        """What a server sent, did and could have said."""
        return self.deployment.notes(party, "heard")

    def _kill(self, name: str) -> None:
        self.deployment.processes[name].kill()
        self.deployment.processes[name].wait()

    def said(self) -> str:
        return self.deployment.log(self.honest)[self._log :]

    def play(self, deviation: str) -> str:
        """Until the honest server has met the deviation; how that ended for it."""
        deployment = self.deployment
        sends = deviations.DEVIATIONS[deviation].sends or ()
        in_set_up = not deviations.IN_SET_UP.isdisjoint(sends)
        logged = len(deployment.log(B))
        if in_set_up:
            self._kill(A)
            self._kill(B)
        self._seen, self._log = (
            len(self.heard(self.honest)),
            len(deployment.log(self.honest)),
        )
        before = len(self.heard(self.cheater))
        self.cheats(deviation)
        if in_set_up:
            deployment.start(B)
            deployment.wait_for(lambda: "serves task" in deployment.log(B)[logged:])
            deployment.start(A)
        found = ""

        def over() -> bool:
            nonlocal found
            notes = self.heard(self.cheater)[before:]
            if not any(note.get("did") == deviation for note in notes):
                return False
            found = self._ended()
            return bool(found)

        deployment.wait_for(over)
        self.cheats_no_more()
        return found

    def _ended(self) -> str:
        said = self.said()
        for bug in ("a bug stopped", "internal error", "Traceback"):
            assert bug not in said, said
        if re.search(r"training stopped: \S|; trying again for", said):
            return FAULT
        counts = re.findall(
            r"version \d+, attempt \d+: (\d+) of (\d+) submissions count", said
        )
        # The first may have been under way.
        if len(counts) > 1:
            return REFUSED if counts[1][0] != counts[1][1] else DONE
        return ""

    def goes_on(self) -> None:
        """Both servers honest: rounds get done, and both updates count."""
        deployment = self.deployment
        before, operators = deployment.done(), Operators(deployment)

        def ready() -> bool:
            # On a busy machine a process may take a while to its first line.
            logs = [deployment.folder / "logs" / f"{name}.log" for name in SERVER_ROLES]
            if not all(log.exists() for log in logs):
                return False
            operators.look()
            # Who met a fault says so, stops, and waits for its operators.
            for name in SERVER_ROLES:
                stops = deployment.log(name).count("training stopped: ")
                if stops > self._stops[name]:
                    self._stops[name] = stops
                    self._kill(name)
                    deployment.start(name)
            of_a, of_b = (deployment.charges(name) for name in SERVER_ROLES)
            return any(
                of_a.get(number) == set(CANDIDATES) == of_b.get(number)
                for number, (state, version, *_) in deployment.rounds(
                    self.honest
                ).items()
                if state == "done" and version >= before
            )

        deployment.wait_for(ready)

    def nothing_new(self, deviation: str) -> int:
        """All that the honest server sent since; how many bits of submissions were in
        it."""
        # What was heard, then what was known: training goes on meanwhile.
        heard = list(messages(self.heard(self.honest), self._seen))
        # Under another secret than this server's own, where it gave another.
        own_secret = not deviation.startswith("set-secret")
        # The bad one may be a moment behind with its own bits, but it gets there by
        # itself.
        self.deployment.wait_for(
            lambda: not self._known().lacks(heard, own_secret=own_secret)
        )
        return self._known().foresaw(heard, own_secret=own_secret)

    def _known(self) -> Known:
        deployment = self.deployment
        keys = deployment.folder / "keys" / self.honest
        coin_key = CoinKey(
            read_coin_key(keys, deployment.folder, deployment.task.digest)
        )
        known = Known(Role(self.honest), deployment.task, coin_key)
        for client in CANDIDATES:
            known.take(deployment.notes(client))
        known.take(self.heard(self.cheater))
        return known


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, request.param)
        stack.callback(kill_all, made.deployment)
        yield made


PARTS = 4
either = pytest.mark.parametrize("site", SERVER_ROLES, indirect=True)


@pytest.mark.parametrize("part", range(PARTS))
@either
def test_whatever_a_server_does_it_hears_what_it_could_have_computed(
    site: Site, part: int
) -> None:
    site.start()
    bits = 0
    all_of_them = deviations.deviations_of(Role(site.cheater), "proof", workers=True)
    for deviation in all_of_them[part::PARTS]:
        try:
            ended = site.play(deviation)
            bits += site.nothing_new(deviation)
            assert ended in ends_of(deviation, "proof"), f"{ended}\n{site.said()}"
            if deviation in REFUSALS:
                assert f"{REFUSALS[deviation]} of 2 submissions count" in site.said()
            site.goes_on()
        except AssertionError as error:
            # The logs alone don't tell it.
            error.add_note(f"at the deviation: {deviation}")
            raise
    assert bits > 0, "no deviation got as far as bits"
    kill_all(site.deployment)
    processes.check_what_left(site.deployment, site.honest)


@either
def test_a_server_that_shows_another_model_gets_nothing_for_it(site: Site) -> None:
    """What both sign for an attempt and A announces is one model: else no owner
    computes."""
    site.start()
    deployment = site.deployment
    site.cheats(deviations.SHOWN)
    owners = [deployment.processes[name] for name in CANDIDATES]
    deployment.wait_for(lambda: all(owner.poll() is not None for owner in owners))
    for name in CANDIDATES:
        says = (
            rf"{site.cheater} signed for attempt .* from model \w{{64}}, and .*;"
            r" nothing is sent"
        )
        assert re.search(says, deployment.log(name))
    site.cheats_no_more()
    for name in CANDIDATES:
        deployment.start(name)
    site.goes_on()
