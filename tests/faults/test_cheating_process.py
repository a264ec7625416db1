"""A malicious server on real processes: A and B in turn, deviating in every message that it sends.

Four or five real processes over TLS, as an operator starts them; the bad one is the real server
with changes (`cheat.py`), so that it knows all that a server knows. Two owners hold two candidate
updates, as far apart as the bound allows, side by side in every round: what the honest server says
of the one it must say of the other. Whatever the bad one does:

- all that the honest server sends before its noisy share the bad one could have computed itself;
- it ends in a named fault, a refused submission, or a round as if nothing had been;
- with an honest partner again the training goes on.

What it sends of its noisy share nobody can check: see the tests at the end for what holds.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.cheat import (
    BY_A,
    BY_B,
    DEVIATIONS,
    GATES,
    IN_SET_UP,
    POISON,
    candidate,
)
from tests.faults.operators import Operators
from tests.faults.process_invariants import check_what_left, kill_all
from tests.faults.processes import ENDLESS, SERVER_ROLES, FaultyDeployment, Forks

from precad.common.aggregator.round.coin import CoinKey, commitment_to
from precad.common.aggregator.round.lists import Alike, Ask, HeldList, Offer
from precad.common.aggregator.round.messages import HeadBody, Position
from precad.common.aggregator.round.places import Places
from precad.common.encode.clip import squared_norm
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.coin_file import read_coin_key
from precad.common.model import load_model
from precad.common.secret import Secret
from precad.common.share.body import body_hasher

LONG_S = 120.0
A, B = SERVER_ROLES
CANDIDATES = {"ward-0": "nothing", "ward-1": "longest"}
OWNERS = [ClientId(name) for name in CANDIDATES]
COHORT = Places(OWNERS)
FAULT, REFUSED, DONE = "a named fault", "a refused submission", "a round like any other"

WITH_NOISE = ("no noise of its own", "the last word on the model", "noisy-share with a bit flipped")
SHOWN = "another model shown"
UNSEEN = {
    # The other server's correlated randomness, which gates need none of.
    "nonce with a bit flipped",
    # What nobody relies on: it is said when all is done.
    "kept with a bit flipped",
    # The lists that close collection tell it all the same.
    "digests offered that nobody signed",
}
REFUSALS = {
    "the victim's submission denied": 1,
    "another word taken": 0,
    "its own word called wrong": 0,
}
"""How many submissions still count."""


def ends_of(deviation: str) -> set[str]:
    """How it may end at the honest server."""
    if deviation in REFUSALS:
        return {REFUSED}
    if deviation in UNSEEN or deviation in WITH_NOISE[:2]:
        return {DONE}
    if deviation in LOOSE:
        return {FAULT, DONE}
    return {FAULT}


LOOSE = {
    # A flipped bit of a number, or of a name, may be a number or a name again.
    "opened with a bit flipped",
    # The message that nobody misses is the next round's fault.
    "kept never",
    "ask with a bit flipped",
    "alike with a bit flipped",
    "offer with a bit flipped",
    "asked twice",
    "remembered with a bit flipped",
}


class Site:
    """A deployment with a server that cheats.

    Args:
        folder: of all parties.
        forks: starts the processes.
        cheater: server-a or server-b.
    """

    def __init__(self, folder: Path, forks: Forks, cheater: str) -> None:
        self.deployment = FaultyDeployment(folder, forks, ENDLESS, validation="fss", poisoned=True)
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
        """From now on."""
        draft = self._cheat("draft")
        draft.write_text(deviation, encoding="utf-8")
        draft.replace(self._cheat(self.cheater))

    def cheats_no_more(self) -> None:
        """From now on."""
        self._cheat(self.cheater).unlink()

    def _cheat(self, name: str) -> Path:
        return self.deployment.orders / f"{name}.cheat"

    def heard(self, party: str) -> list[dict[str, Any]]:
        """What a server sent, did and could have said."""
        return self.deployment.notes(party, "heard")

    def kill_servers(self) -> None:
        """As by a power cut."""
        for name in SERVER_ROLES:
            self.deployment.processes[name].kill()
            self.deployment.processes[name].wait()

    def said(self) -> str:
        """What the honest server has logged since the deviation was asked for."""
        return self.deployment.log(self.honest)[self._log :]

    def play(self, deviation: str) -> str:
        """Until the honest server has met the deviation; how that ended for it."""
        deployment = self.deployment
        in_set_up = not IN_SET_UP.isdisjoint(DEVIATIONS[deviation].sends or ())
        logged = len(deployment.log(B))
        if in_set_up:
            self.kill_servers()
        self._seen = len(self.heard(self.honest))
        self._log = len(deployment.log(self.honest))
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

        deployment.wait_for(over, LONG_S)
        self.cheats_no_more()
        return found

    def _ended(self) -> str:
        said = self.said()
        assert "a bug stopped" not in said, said
        assert "internal error" not in said, said
        assert "Traceback" not in said, said
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
            if not all(
                (deployment.folder / "logs" / f"{name}.log").exists() for name in SERVER_ROLES
            ):
                # On a busy machine a process may take a while to its first line.
                return False
            operators.look()
            # Who met a fault says so, stops, and waits for its operators.
            for name in SERVER_ROLES:
                stops = deployment.log(name).count("training stopped: ")
                if stops > self._stops[name]:
                    self._stops[name] = stops
                    deployment.processes[name].kill()
                    deployment.processes[name].wait()
                    deployment.start(name)
            charges = [deployment.charges(name) for name in SERVER_ROLES]
            return any(
                charged[number] == set(CANDIDATES) == charges[1].get(number)
                for charged in charges[:1]
                for number, (state, version, *_) in deployment.rounds(self.honest).items()
                if state == "done" and version >= before and number in charged
            )

        deployment.wait_for(ready, LONG_S)

    # --- what the bad server could have said beforehand ------------------------------------------

    def nothing_new(self, deviation: str) -> int:
        """All that the honest server sent since; how many bits of submissions were in it."""
        # What was heard, then what was known: training goes on meanwhile.
        heard = list(messages(self.heard(self.honest), self._seen))
        decided = {ctx for each in heard if each.step == "decide" for ctx in each.contexts}
        # Under another secret than this server's own, where it gave another.
        own_secret = not deviation.startswith("set-secret")
        valid_sets = [each.fields() for each in heard if each.step == "valid-set" and own_secret]

        def caught_up() -> bool:
            known = _Known(self)
            return decided <= known.bits.keys() and known.possible.keys() >= {
                said["digest"] for said in valid_sets
            }

        # The bad one may be a moment behind with its own bits, but it gets there by itself.
        self.deployment.wait_for(caught_up, LONG_S)
        known = _Known(self)
        for said in valid_sets:
            assert said["count"] == len(known.possible[said["digest"]])
        bits = 0
        for each in heard:
            match each.step:
                case "decide":
                    foreseen = b"".join(complement(known.bits[ctx]) for ctx in each.contexts)
                    assert each.payload == foreseen
                    bits += len(each.contexts)
                case "body":
                    known.body(each.pieces)
                case "valid-set":
                    pass
                case step:
                    known.foreseen(step, each.payload, each.attempt)
        return bits


@dataclass(frozen=True)
class Message:
    """What a server sent."""

    step: str
    pieces: list[bytes]
    attempt: int
    contexts: list[str]
    """Of the submissions that its last decision is about."""

    @property
    def payload(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)

    def fields(self) -> dict[str, Any]:
        """Of a message in JSON."""
        found: dict[str, Any] = json.loads(self.payload)
        return found


def messages(notes: list[dict[str, Any]], since: int) -> Iterator[Message]:
    """Whole ones, of which this note or a later one is the last piece."""
    contexts: list[str] = []
    bodies: dict[str, list[bytes]] = defaultdict(list)
    for number, note in enumerate(notes):
        contexts = note.get("decides", contexts)
        if "sent" not in note:
            continue
        name, piece = note["sent"], bytes.fromhex(note["payload"])
        step = name.split("/")[0]
        pieces = [piece]
        if step == "body":
            bodies[name].append(piece)
            if piece not in (b"w", b"d"):
                continue
            pieces = bodies.pop(name)
        if number >= since:
            yield Message(step, pieces, note["attempt"], contexts)


class _Known:
    """What the bad server knows before it hears a word."""

    def __init__(self, site: Site) -> None:
        deployment = site.deployment
        notes = site.heard(site.cheater)
        evaluated = [note for note in notes if "evaluated" in note]
        self.bits = {note["evaluated"]: bytes.fromhex(note["bits"]) for note in evaluated}
        self.possible = {note["possible"]: note["clients"] for note in notes if "possible" in note}
        # Every owner's signed header lies at both servers; it notes it before it sends it.
        owners = [note for client in CANDIDATES for note in deployment.notes(client)]
        signed = [note for note in owners if "commitment" in note]
        self.signed = {note["commitment"] for note in signed}
        self.bodies = {note["context"]: note["body"] for note in signed}
        self.role = Role(site.honest)
        self.task = deployment.task
        self.coin_key = CoinKey(
            read_coin_key(
                deployment.folder / "keys" / site.honest,
                deployment.folder,
                deployment.task.digest,
            )
        )
        own = [note for note in notes if "sent" in note]
        self.heads = {
            note["attempt"]: json.loads(bytes.fromhex(note["instead_of"]))["body"]
            for note in own
            if note["sent"] == "head"
        }

    def foreseen(self, step: str, payload: bytes, attempt: int) -> None:
        """A message that has no part of an update in it: every field of it is known."""
        if attempt < 0 and step not in {"coin-commitment", "coin-opening", "cohort"}:
            # Before the link's first attempt: who it is, where it stands, and fresh randomness.
            assert step in BEFORE, step
            if step == "position":
                Position.from_bytes(payload)
            return
        check = _FORESEEN.get(step)
        assert check is not None, f"a message that nobody foresaw: {step}"
        check(self, payload, attempt)

    def body(self, pieces: list[bytes]) -> None:
        """What server B forwards is what an owner has signed, and it alone."""
        salt, *words, end = pieces
        if end == b"w":
            b = b"".join(words)
            assert any(
                body_hasher(Digest(bytes.fromhex(ctx)), Secret(salt)).update(b).hexdigest() == body
                for ctx, body in self.bodies.items()
            )


BEFORE = {
    "position", "remembered", "roster", "roster-seal", "set-secret", "dealer", "nonce", "evidence",
    "history", "void", "transfer", "model-bytes", "transferred", "word", "lost", "unknown",
    # Where a break is mended, on with the release (`check_what_left` says what of).
    "head", "countersignature", "noisy-share", "model", "kept",
}  # fmt: skip


def sealed(payload: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(bytes.fromhex(json.loads(payload)["body"]))
    return body


def _coin_commitment(known: _Known, payload: bytes, _: int) -> None:
    said = json.loads(payload)
    body = json.loads(bytes.fromhex(said["commitment"]["body"]))
    opening = known.coin_key.opening(known.task.digest, body["version"])
    assert body == commitment_to(opening, known.role).model_dump()


def _coin_opening(known: _Known, payload: bytes, _: int) -> None:
    body = json.loads(bytes.fromhex(json.loads(payload)["opening"]["body"]))
    assert body == known.coin_key.opening(known.task.digest, body["version"]).model_dump()


def _names(_: _Known, payload: bytes, __: int) -> None:
    said = json.loads(payload)
    assert sum(said.get("clients", ())) <= len(CANDIDATES)
    assert set(said) <= {"attempt", "clients", "model", "over", "doubt", "refusal", "operators",
                         "used", "count"}  # fmt: skip


def _ask(_: _Known, payload: bytes, __: int) -> None:
    Ask.from_bytes(payload)


def _alike(_: _Known, payload: bytes, __: int) -> None:
    assert set(Alike.from_bytes(payload, COHORT).clients) <= set(OWNERS)


def _offer(known: _Known, payload: bytes, _: int) -> None:
    signed = Offer.from_bytes(payload, COHORT).signed
    assert set(signed) <= set(OWNERS)
    assert {str(digest) for digest in signed.values()} <= known.signed


def _held(known: _Known, payload: bytes, _: int) -> None:
    outcomes = HeldList.from_bytes(payload).outcomes
    assert len(outcomes) <= len(OWNERS)
    assert {str(each) for each in outcomes if isinstance(each, Digest)} <= known.signed


def _head(known: _Known, payload: bytes, attempt: int) -> None:
    body = sealed(payload)
    assert (body["task"], body["attempt"]) == (str(known.task.digest), attempt)
    assert body["valid_set"] in known.possible
    # The ledger's own chain is salted: `head` is 32 bytes of its salts to everybody else.
    assert set(body) == set(HeadBody.model_fields)


def _countersignature(known: _Known, payload: bytes, attempt: int) -> None:
    assert json.loads(payload)["body"] == known.heads[attempt]


def _after_noise(*_: object) -> None:
    """Noisy shares, and what follows from both of them."""


_FORESEEN: dict[str, Callable[[_Known, bytes, int], None]] = {
    "coin-commitment": _coin_commitment,
    "coin-opening": _coin_opening,
    "cohort": _names,
    "ask": _ask,
    "alike": _alike,
    "pairs": _names,
    "opened": _names,
    "offer": _offer,
    "held": _held,
    "head": _head,
    "countersignature": _countersignature,
    "noisy-share": _after_noise,
    "model": _after_noise,
    "kept": _after_noise,
}


def complement(own: bytes) -> bytes:
    """What the other server has where all gates hold and its word is right."""
    bits = np.unpackbits(np.frombuffer(own, dtype=np.uint8))
    other = 1 - bits
    other[GATES] = 1
    other[GATES + 1 :] = 0
    return np.packbits(other).tobytes()


def deviations_of(cheater: str) -> list[str]:
    """Those that this server can play."""
    elsewhere = BY_B if cheater == A else BY_A
    only_a = {"a stranger in the cohort", "an attempt that was used", "another model in the cohort",
              "the last number that there is", "a number too large",
              "somebody alike who wasn't offered"}  # fmt: skip
    only_b = {"digests offered that nobody signed", *(n for n in DEVIATIONS if "body" in n)}
    skip = only_b if cheater == A else only_a
    return [
        name
        for name in DEVIATIONS
        if name not in skip and name.split(" ")[0] not in elsewhere and name != SHOWN
    ]


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path, forks: Forks) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(tmp_path, forks, request.param)
        stack.callback(kill_all, made.deployment)
        yield made


def test_the_two_candidates_are_as_far_apart_as_the_bound_allows(
    tmp_path: Path, forks: Forks
) -> None:
    task = FaultyDeployment(tmp_path, forks, 1, validation="fss").task
    norms = {which: squared_norm(candidate(task, which)) for which in CANDIDATES.values()}
    assert norms == {"nothing": 0, "longest": task.bound**2}


PARTS = 4


@contextmanager
def named(deviation: str) -> Iterator[None]:
    """What fails tells at which deviation: the logs alone don't."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"at the deviation: {deviation}")
        raise


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("site", SERVER_ROLES, indirect=True)
def test_whatever_a_server_does_it_hears_what_it_could_have_computed(site: Site, part: int) -> None:
    site.start()
    bits = 0
    for deviation in deviations_of(site.cheater)[part::PARTS]:
        with named(deviation):
            ended = site.play(deviation)
            bits += site.nothing_new(deviation)
            assert ended in ends_of(deviation), f"{ended}\n{site.said()}"
            if deviation in REFUSALS:
                assert f"{REFUSALS[deviation]} of 2 submissions count" in site.said()
            site.goes_on()
    assert bits > 0, "no deviation got as far as bits"
    kill_all(site.deployment)
    check_what_left(site.deployment, site.honest)


# --- what nobody can notice ----------------------------------------------------------------------


def noisy_sums(site: Site) -> dict[int, np.ndarray[Any, np.dtype[np.int64]]]:
    """By attempt, what both noisy shares that left make together, ``[d] int64``."""
    sums: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
    shares: dict[str, dict[int, bytes]] = {}
    for party in SERVER_ROLES:
        shares[party] = {
            note["attempt"]: bytes.fromhex(note["payload"])
            for note in site.heard(party)
            if note.get("sent") == "noisy-share"
        }
    for number in shares[A].keys() & shares[B].keys():
        of_a, of_b = (np.frombuffer(shares[party][number], dtype="<i8") for party in SERVER_ROLES)
        sums[number] = of_a + of_b
    return sums


@pytest.mark.parametrize("site", SERVER_ROLES, indirect=True)
def test_without_the_bad_servers_noise_the_honest_ones_is_all_there(site: Site) -> None:
    """A server that leaves its noise out gets the sum with the other's whole noise, not with half.

    Nobody can notice: the statement of a record counts one server's noise alone.
    """
    site.start()
    deployment, task = site.deployment, site.deployment.task
    site.cheats("no noise of its own")
    before = deployment.done()
    deployment.wait_for(lambda: deployment.done() >= before + 14, LONG_S)
    kill_all(deployment)
    check_what_left(deployment, site.honest)
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


@pytest.mark.parametrize("site", SERVER_ROLES, indirect=True)
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
    site.cheats("the last word on the model")
    before = deployment.done()
    deployment.wait_for(lambda: deployment.done() >= before + 6, LONG_S)
    kill_all(deployment)
    check_what_left(deployment, site.honest)
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


@pytest.mark.parametrize("site", SERVER_ROLES, indirect=True)
def test_a_server_that_shows_another_model_gets_nothing_for_it(site: Site) -> None:
    """Both servers' digests and A's announcement must be the same: else no owner computes."""
    site.start()
    deployment = site.deployment
    site.cheats(SHOWN)
    owners = [deployment.processes[name] for name in CANDIDATES]
    deployment.wait_for(lambda: all(owner.poll() is not None for owner in owners), LONG_S)
    for name in CANDIDATES:
        assert re.search(r"model \d+ has digest .*; nothing is sent", deployment.log(name))
    site.cheats_no_more()
    for name in CANDIDATES:
        deployment.start(name)
    site.goes_on()
