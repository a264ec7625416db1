"""A malicious server on real processes: A and B in turn, deviating in every message that it sends.

Four or five real processes over TLS, as an operator starts them; the bad one is the real server
with changes (`cheat.py`), so that it knows all that a server knows. Two owners hold two candidate
updates, as far apart as the bound allows, side by side in every round: what the honest server says
of the one it must say of the other. Whatever the bad one does:

- all that the honest server sends before its noisy share the bad one could have computed itself;
- it ends in a named fault, a refused submission, or a round as if nothing had been;
- with an honest partner again the training goes on.

What it sends of its noisy share nobody can check: see the tests at the end for what holds. The same
in simulated time is ``tests/faults/test_cheating_servers.py``.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults import deviations
from tests.faults.cheat import candidate
from tests.faults.deviations import DONE, FAULT, POISON, REFUSALS, REFUSED, ends_of
from tests.faults.foreseen import CANDIDATES, Known, messages
from tests.faults.operators import Operators
from tests.faults.process_invariants import check_what_left, kill_all
from tests.faults.processes import ENDLESS, SERVER_ROLES, FaultyDeployment, Forks

from precad.aggregator.rounds.aggregator import CoinKey
from precad.common.identifiers import Role
from precad.common.identity.credentials import read_coin_key
from precad.common.model import load_model
from precad.common.prime_field import FIELD
from precad.common.ring import from_bytes

A, B = SERVER_ROLES


class Site:
    """A deployment with a server that cheats."""

    def __init__(self, folder: Path, forks: Forks, cheater: str) -> None:
        how: Any = {"validation": "proof", "poisoned": True}
        self.deployment = FaultyDeployment(folder, forks, ENDLESS, **how)
        self.cheater = cheater
        self.honest = B if cheater == A else A
        self._seen = 0
        self._log = 0
        self._stops: Counter[str] = Counter()

    def start(self, candidates: Mapping[str, str] = CANDIDATES) -> None:
        """All parts; owners hold these updates, or what their records give."""
        for name, which in candidates.items():
            self._cheat(name).write_text(which, encoding="utf-8")
        self.deployment.start_all()
        self.goes_on()

    def cheats(self, deviation: str) -> None:
        draft = self._cheat("draft")
        draft.write_text(deviation, encoding="utf-8")
        draft.replace(self._cheat(self.cheater))

    def cheats_no_more(self) -> None:
        self._cheat(self.cheater).unlink()

    def cheat_for(self, versions: int, deviation: str) -> int:
        """So many versions, then all end; the version in which it began."""
        self.cheats(deviation)
        before = self.deployment.done()
        self.deployment.wait_for(lambda: self.deployment.done() >= before + versions)
        kill_all(self.deployment)
        check_what_left(self.deployment, self.honest)
        return before

    def _cheat(self, name: str) -> Path:
        return self.deployment.orders / f"{name}.cheat"

    def heard(self, party: str) -> list[dict[str, Any]]:
        """What a server sent, did and could have said."""
        return self.deployment.notes(party, "heard")

    def _kill(self, name: str) -> None:
        """As by a power cut."""
        self.deployment.processes[name].kill()
        self.deployment.processes[name].wait()

    def said(self) -> str:
        """What the honest server has logged since the deviation was asked for."""
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
        self._seen, self._log = len(self.heard(self.honest)), len(deployment.log(self.honest))
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
        counts = re.findall(r"version \d+ is made: (\d+) of (\d+) submissions count", said)
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
                for number, (state, version, *_) in deployment.rounds(self.honest).items()
                if state == "done" and version >= before
            )

        deployment.wait_for(ready)

    def nothing_new(self, deviation: str) -> int:
        """All that the honest server sent since; how many bits of submissions were in it."""
        # What was heard, then what was known: training goes on meanwhile.
        heard = list(messages(self.heard(self.honest), self._seen))
        # Under another secret than this server's own, where it gave another.
        own_secret = not deviation.startswith("set-secret")
        # The bad one may be a moment behind with its own bits, but it gets there by itself.
        self.deployment.wait_for(lambda: not self._known().lacks(heard, own_secret=own_secret))
        return self._known().foresaw(heard, own_secret=own_secret)

    def _known(self) -> Known:
        deployment = self.deployment
        keys = deployment.folder / "keys" / self.honest
        coin_key = CoinKey(read_coin_key(keys, deployment.folder, deployment.task.digest))
        known = Known(Role(self.honest), deployment.task, coin_key)
        for client in CANDIDATES:
            known.take(deployment.notes(client))
        known.take(self.heard(self.cheater))
        return known


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, forks: Forks) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, forks, request.param)
        stack.callback(kill_all, made.deployment)
        yield made


PARTS = 4
either = pytest.mark.parametrize("site", SERVER_ROLES, indirect=True)


@pytest.mark.parametrize("part", range(PARTS))
@either
def test_whatever_a_server_does_it_hears_what_it_could_have_computed(site: Site, part: int) -> None:
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
    check_what_left(site.deployment, site.honest)


def noisy_sums(site: Site) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """By attempt, what both noisy shares that left make together, ``[d] int64``."""
    sums: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
    shares = [
        {
            note["attempt"]: bytes.fromhex(note["payload"])
            for note in site.heard(party)
            if note.get("sent") == "noisy-share"
        }
        for party in SERVER_ROLES
    ]
    for number in shares[0].keys() & shares[1].keys():
        of_a, of_b = (from_bytes(each[number]) for each in shares)
        FIELD.add(of_a, of_b)
        sums[number] = FIELD.decode(of_a)
    return sums


@either
def test_without_the_bad_servers_noise_the_honest_ones_is_all_there(site: Site) -> None:
    """A server that leaves its noise out gets the sum with the other's whole noise, not with half.

    Nobody can notice: the statement of a record counts one server's noise alone.
    """
    site.start()
    deployment, task = site.deployment, site.deployment.task
    before = site.cheat_for(14, "no noise of its own")
    total = sum(candidate(task, which) for which in CANDIDATES.values())
    counted = deployment.charges(site.honest)
    done = [
        number
        for number, (state, version, *_) in deployment.rounds(site.honest).items()
        if state == "done"
        and before < version < before + 14
        and counted.get(number) == set(CANDIDATES)
    ]
    sums = noisy_sums(site)
    noise = np.concatenate([sums[number] - total for number in done]) / task.noise_units
    assert noise.size >= 60
    # 60 degrees of freedom and more: within this but for one time in 10^5.
    assert 0.65 < np.sqrt((noise**2).mean()) < 1.4


@either
def test_a_server_that_speaks_last_chooses_the_model_and_owners_go_on_all_the_same(
    site: Site,
) -> None:
    """θ is whatever it likes, so that nothing an owner shows may depend on it.

    What the honest server has let go by then is its sum with its noise, once a version; what θ
    becomes is a function of that. Owners compute real gradients here, one record has none that is
    finite, and both count in every version, whatever θ has become.
    """
    site.start({})
    deployment, task = site.deployment, site.deployment.task
    before = site.cheat_for(6, "the last word on the model")
    sums = noisy_sums(site)
    rounds = deployment.rounds(site.honest)
    under = [n for n, (state, v, *_) in rounds.items() if state == "done" and v > before + 1]
    under = [number for number in under if number in sums]
    assert len(under) >= 4
    charges = deployment.charges(site.honest)
    for number in under:
        assert (sums[number] == POISON).all()
        assert charges[number] == set(CANDIDATES)
    for party in SERVER_ROLES:
        model = load_model(deployment.folder / "state" / party / "model.safetensors", task)
        # Far beyond what any training moves it to, and the same at both servers.
        assert (np.abs(model.theta) > 10_000).all()
    for client in CANDIDATES:
        log = deployment.log(client)
        assert "Traceback" not in log
        assert "rejected" not in log


@either
def test_a_server_that_shows_another_model_gets_nothing_for_it(site: Site) -> None:
    """What both sign for an attempt and A announces is one model: else no owner computes."""
    site.start()
    deployment = site.deployment
    site.cheats(deviations.SHOWN)
    owners = [deployment.processes[name] for name in CANDIDATES]
    deployment.wait_for(lambda: all(owner.poll() is not None for owner in owners))
    for name in CANDIDATES:
        says = rf"{site.cheater} signed for attempt .* from model \w{{64}}, and .*; nothing is sent"
        assert re.search(says, deployment.log(name))
    site.cheats_no_more()
    for name in CANDIDATES:
        deployment.start(name)
    site.goes_on()


@either
def test_a_server_that_serves_other_bytes_is_passed_over(site: Site) -> None:
    site.start()
    deployment = site.deployment
    site.cheats(deviations.SERVED)
    before = deployment.done()
    deployment.wait_for(lambda: deployment.done() >= before + 3)
    logs = "".join(map(deployment.log, CANDIDATES))
    assert re.search(r"server [AB] served model \d+ with digest .*; fetching model", logs)
    site.cheats_no_more()
    site.goes_on()
