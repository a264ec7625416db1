"""A server that departs from the protocol, as a real process (test_cheating_process.py).

As in ``launch.py``, methods of the real classes are wrapped in the child, before the command runs;
what it is to do otherwise stands in a file, read anew each time, so that a test changes it while
all processes go on. Every server notes what it sends, and what it could say of the other's bits
beforehand: its own keys' bits at the signed points, before it changes anything.
"""

import functools
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np

from precad.client.data_owner import DataOwner
from precad.common.aggregator.collect import Inbox
from precad.common.aggregator.release import aggregate as aggregating
from precad.common.aggregator.service.squares import RemoteSquares
from precad.common.aggregator.training import conduct
from precad.common.aggregator.training.shelf import Shelf, ShelvedModel
from precad.common.aggregator.training.stored import InMemory
from precad.common.aggregator.validate.by_gates import ByGates
from precad.common.deal.request import SquareRequest
from precad.common.deal.squares import Answers
from precad.common.errors import PeerUnavailable, PrecadError, Rejection
from precad.common.identifiers import ATTEMPTS, ClientId, Digest
from precad.common.link import PeerLink
from precad.common.norm_check.verdicts import submission_bytes
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.share.mask import SALT_BYTES
from precad.common.share.submission import Submission
from precad.common.task import Task

VICTIM = ClientId("ward-0")
GATES = 41
WIDTH = submission_bytes(GATES)
POISON = 2**40
"""Every coordinate of the noisy sum that a server chooses which speaks last."""

Send = Callable[[bytes], Sequence[bytes]]


# --- what it sends to the other server -----------------------------------------------------------


def flipped(place: int | None = None) -> Send:
    """One bit otherwise: this one, or one in the middle."""

    def flip(data: bytes) -> Sequence[bytes]:
        if not data:
            return [b"\0"]
        at = 8 * (len(data) // 2) if place is None else place
        changed = bytearray(data)
        changed[at // 8] ^= 0x80 >> at % 8
        return [bytes(changed)]

    return flip


def edited(**fields: Any) -> Send:
    """A message in JSON with some fields otherwise; functions get what was there."""

    def edit(data: bytes) -> Sequence[bytes]:
        said = json.loads(data)
        for name, value in fields.items():
            said[name] = value(said[name]) if callable(value) else value
        return [json.dumps(said).encode()]

    return edit


def every_bit(data: bytes) -> Sequence[bytes]:
    """All gates of all submissions otherwise."""
    return [b"".join(bytes(255 - each for each in data[i : i + 5]) + data[i + 5 : i + WIDTH]
                     for i in range(0, len(data), WIDTH))]  # fmt: skip


def in_salt(send: Send) -> Send:
    """In salt_h alone."""
    return lambda data: send(data) if len(data) == SALT_BYTES else [data]


def in_words(send: Send) -> Send:
    """In the pieces of b, not in what goes before or behind them."""
    return lambda data: send(data) if len(data) > SALT_BYTES else [data]


def other_digests(data: bytes) -> Sequence[bytes]:
    """As if clients had signed something else for this server: all that it lists is held."""
    return [b"".join(data[i : i + 1] + b"\xab" * 32 for i in range(0, len(data), 33))]


SILENT: Send = lambda _: ()  # noqa: E731
TWICE: Send = lambda data: (data, data)  # noqa: E731
SHORT: Send = lambda data: (data[:-1],)  # noqa: E731
LONG: Send = lambda data: (data + b"\0",)  # noqa: E731
EMPTY: Send = lambda _: (b"",)  # noqa: E731


@dataclass(frozen=True)
class Deviation:
    """What one server does otherwise."""

    sends: Mapping[str, Send] | None = None
    """Instead of the pieces of these steps' messages."""
    asks: Callable[[SquareRequest], Sequence[SquareRequest]] | None = None
    """The dealer, instead of one request."""
    deaf: bool = False
    """What the dealer refuses, it doesn't hear."""
    own_bits: Callable[[bytes], bytes] | None = None
    """What it takes for its own bits of a submission, in what it says and in its verdict."""
    turned: bool = False
    """It decides on the submissions in the other order."""
    lists: bool = False
    """It matches nothing before collection closes: all is on the last lists."""
    denies: bool = False
    """It says that it holds nothing good of the victim's, and acts so."""
    hangs_up: bool = False
    """It ends the link as soon as it has heard the bits."""
    noiseless: bool = False
    """It leaves its own noise out."""
    speaks_last: bool = False
    """It chooses its noisy share after it has heard the other's, and the model with it."""
    other_model: bool = False
    """It shows owners another model, or another digest of it."""


IN_SET_UP = frozenset({"position", "remembered", "roster", "set-secret", "dealer", "nonce"})
IN_A_ROUND = (
    "coin-commitment",
    "coin-opening",
    "cohort",
    "pairs",
    "held",
    "opened",
    "decide",
    "valid-set",
    "head",
    "countersignature",
    "noisy-share",
    "model",
    "kept",
)
BY_A, BY_B = ("ask", "alike"), ("offer", "body")


def _of(step: str, send: Send) -> Deviation:
    return Deviation(sends={step: send}, lists=step == "held")


DEVIATIONS: dict[str, Deviation] = {
    **{
        # Of the last lists in an outcome's code; "a list of other digests" is about the rest.
        f"{step} with a bit flipped": _of(step, flipped(0 if step == "held" else None))
        for step in (*sorted(IN_SET_UP), *IN_A_ROUND, *BY_A, *BY_B)
    },
    **{f"{step} never": _of(step, SILENT) for step in (*IN_A_ROUND[2:], *BY_A, *BY_B)},
    **{
        f"{step} twice": _of(step, TWICE)
        for step in ("cohort", "held", "decide", "valid-set", "noisy-share", "body")
    },
    # Lists.
    "a stranger in the cohort": _of("cohort", edited(clients=[1, 9])),
    "an attempt that was used": _of("cohort", edited(attempt=lambda number: number - 1)),
    "another model in the cohort": _of("cohort", edited(model="ab" * 32)),
    "a list of other digests": _of("held", other_digests),
    "a list without the first": _of("held", lambda data: [data[33:]]),
    "digests offered that nobody signed": _of("offer", other_digests),
    "somebody alike who wasn't offered": _of("alike", lambda _: [b"\1"]),
    "the victim's submission denied": Deviation(lists=True, denies=True),
    "more opened than there were attempts": _of("opened", edited(count=ATTEMPTS)),
    "more opened than there are numbers": _of("opened", edited(count=2**63 - 1)),
    "more opened before": _of("position", edited(opened=ATTEMPTS)),
    "the last number that there is": _of("cohort", edited(attempt=ATTEMPTS)),
    "a number too large": _of("cohort", edited(attempt=2**63 - 1)),
    # The forwarded body.
    "another salt of the body": _of("body", in_salt(flipped())),
    "a body with a bit flipped": _of("body", in_words(flipped())),
    "a body one word short": _of("body", in_words(lambda data: [data[:-8]])),
    "a body one word long": _of("body", in_words(lambda data: [data + bytes(8)])),
    "a body of zeros": _of("body", in_words(lambda data: [bytes(len(data))])),
    # Bits and words.
    "the first gate's bit": _of("decide", flipped(0)),
    "the norm's bit": _of("decide", flipped(GATES - 1)),
    "its own word wrong": _of("decide", flipped(GATES)),
    "every bit": _of("decide", every_bit),
    "a bit behind the last": _of("decide", flipped(GATES + 1)),
    "bits one byte short": _of("decide", SHORT),
    "bits one byte long": _of("decide", LONG),
    "no bits": _of("decide", EMPTY),
    "another word taken": Deviation(own_bits=lambda bits: flipped(GATES - 1)(bits)[0]),
    "its own word called wrong": Deviation(own_bits=lambda bits: flipped(GATES)(bits)[0]),
    "the other order": Deviation(turned=True),
    "gone with the bits": Deviation(hangs_up=True),
    # To the dealer.
    "another seed": Deviation(asks=lambda r: [replace(r, seed=Secret.random())]),
    "another salt": Deviation(asks=lambda r: [replace(r, salt=Secret.random())]),
    "another commitment to A": Deviation(asks=lambda r: [replace(r, commitment_a=bytes(32))]),
    "another commitment to B": Deviation(asks=lambda r: [replace(r, commitment_b=bytes(32))]),
    "another context": Deviation(asks=lambda r: [replace(r, context=secrets.token_bytes(32))]),
    "a later attempt": Deviation(asks=lambda r: [replace(r, attempt=r.attempt + 1)]),
    "asked twice": Deviation(asks=lambda r: [r, r], deaf=True),
    "not asked": Deviation(asks=lambda _: []),
    # What leaves with noise.
    "no noise of its own": Deviation(noiseless=True),
    "the last word on the model": Deviation(speaks_last=True),
    "another model shown": Deviation(other_model=True),
}


class Cheat:
    """What this process is to do otherwise, and what it has noted.

    Args:
        folder: of the orders.
        name: of the party.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.cheat"
        self._notes = folder / f"{name}.heard"

    @property
    def wanted(self) -> str:
        """A key of ``DEVIATIONS``, or a client's candidate; empty for none."""
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def now(self) -> Deviation:
        """What to do otherwise."""
        return DEVIATIONS.get(self.wanted, Deviation())

    def note(self, **what: object) -> None:
        """One line, whole or not at all."""
        descriptor = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, json.dumps(what).encode() + b"\n")
        finally:
            os.close(descriptor)

    def did(self) -> None:
        """It has done otherwise."""
        self.note(did=self.wanted)


def install(cheat: Cheat) -> None:
    """Wrap the real classes' methods."""
    _link(cheat)
    _bits(cheat)
    _collection(cheat)
    _release(cheat)
    _dealer(cheat)
    _client(cheat)


def _wrapping(owner: Any, method: str) -> Callable[[Callable[..., Any]], None]:
    """``@_wrapping(owner, method)``: calls the function with the original first."""
    original = getattr(owner, method)

    def replace_with(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def wrapped(*given: Any, **named: Any) -> Any:
            return function(original, *given, **named)

        setattr(owner, method, wrapped)

    return replace_with


def _link(cheat: Cheat) -> None:
    @_wrapping(PeerLink, "send_piece")
    def send_piece(
        original: Any, self: Any, step: str, piece: bytes | memoryview, *, last: bool
    ) -> None:
        name, data = step.split("/", 1)[0], bytes(piece)
        send = (cheat.now.sends or {}).get(name)
        instead = [data] if send is None else send(data)
        if list(instead) != [data]:
            cheat.did()
        for each in instead:
            cheat.note(sent=step, attempt=self._attempt, payload=each.hex(), instead_of=data.hex())
            original(self, step, each, last=last)


def _bits(cheat: Cheat) -> None:
    @_wrapping(ByGates, "_evaluate")
    def evaluate(original: Any, self: Any, submissions: Sequence[Submission]) -> bytes:
        bits, change = bytearray(original(self, submissions)), cheat.now.own_bits
        for number, submission in enumerate(submissions):
            own = slice(number * WIDTH, (number + 1) * WIDTH)
            cheat.note(evaluated=str(submission.context.digest), bits=bits[own].hex())
            if change is not None:
                bits[own] = change(bytes(bits[own]))
                cheat.did()
        return bytes(bits)

    @_wrapping(ByGates, "decide")
    def decide(original: Any, self: Any, batch: int, submissions: Sequence[Submission]) -> Any:
        cheat.note(decides=[str(each.context.digest) for each in submissions])
        if cheat.now.turned:
            cheat.did()
            submissions = submissions[::-1]
        found = original(self, batch, submissions)
        if cheat.now.hangs_up:
            cheat.did()
            raise PeerUnavailable("this server has heard enough")
        return found


def _note_sets(cheat: Cheat, aggregator: Any, matched: Any) -> None:
    """The digest of every set that may turn out valid: both servers can compute them all."""
    names = list(matched.submissions)
    sets = chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))
    for valid in sets:
        digest = aggregating._set_digest(aggregator, matched, valid)
        cheat.note(possible=str(digest), clients=[client.name for client in valid])


def _collection(cheat: Cheat) -> None:
    @_wrapping(Inbox, "arrivals")
    def arrivals(original: Any, self: Any, *rest: Any) -> Any:
        return [] if cheat.now.lists else original(self, *rest)

    @_wrapping(Inbox, "close")
    def close(original: Any, self: Any) -> Any:
        collected = dict(original(self))
        if cheat.now.denies and isinstance(collected.get(VICTIM), Submission):
            cheat.did()
            collected[VICTIM] = Rejection.MALFORMED
        return collected


def _release(cheat: Cheat) -> None:
    @_wrapping(conduct, "aggregate")
    def aggregate(original: Any, aggregator: Any, matched: Any, validator: Any) -> Any:
        _note_sets(cheat, aggregator, matched)
        return original(aggregator, matched, validator)

    @_wrapping(conduct, "add_noise")
    def add_noise(original: Any, summed: Any, noise: Any) -> Any:
        noised = original(summed, noise)
        if not cheat.now.noiseless:
            return noised
        cheat.did()
        return replace(noised, noisy_share=summed.share_sum.copy())

    held: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    @_wrapping(PeerLink, "send")
    def send(original: Any, self: Any, step: str, payload: bytes | memoryview) -> None:
        if step == "noisy-share" and cheat.now.speaks_last:
            own = np.frombuffer(payload, dtype="<i8")
            own.flags.writeable = True
            held.append(own)
        else:
            original(self, step, payload)

    @_wrapping(PeerLink, "receive_into")
    def receive_into(original: Any, self: Any, step: str, out: memoryview) -> None:
        original(self, step, out)
        if held:
            own = held.pop()
            # In place: this server itself reckons with what it now sends.
            own[:] = POISON - np.frombuffer(out, dtype="<i8")
            cheat.did()
            self.send_piece(step, own.tobytes(), last=True)

    @_wrapping(Shelf, "get")
    def get(original: Any, self: Any, version: int) -> Any:
        model = original(self, version)
        if not cheat.now.other_model:
            return model
        cheat.did()
        theta = np.frombuffer(b"".join(model.pieces(1 << 17)), dtype="<f8")
        return ShelvedModel(version, Digest.of(b"another model"), InMemory(theta + 1.0))


def _dealer(cheat: Cheat) -> None:
    @_wrapping(RemoteSquares, "ask")
    def ask(original: Any, self: Any, request: SquareRequest) -> None:
        asks = cheat.now.asks
        if asks is None:
            original(self, request)
            return
        cheat.did()
        # It waits for what it was to ask for, whatever it asks instead.
        self._answers.expect(request)
        for each in asks(request):
            if each.context != request.context:
                original(self, each)
            else:
                self._outgoing.put(_to_wire(each, self._epoch))

    @_wrapping(Answers, "put")
    def put(original: Any, self: Any, contexts: Sequence[bytes], answer: Any) -> None:
        if not (cheat.now.deaf and isinstance(answer, PrecadError)):
            original(self, contexts, answer)


def _to_wire(request: SquareRequest, epoch: bytes) -> Any:
    from precad.common.aggregator.service.squares import square_request_to_wire  # noqa: PLC0415

    return square_request_to_wire(request, epoch)


def candidate(task: Task, which: str) -> RingVector:
    """Of two updates within the bound, as far apart as there are."""
    x = np.zeros(task.dimension, dtype=np.int64)
    if which == "longest":
        x[0] = -task.bound
    return x


def _client(cheat: Cheat) -> None:
    @_wrapping(DataOwner, "update")
    def update(original: Any, self: Any, view: Any) -> RingVector:
        if which := cheat.wanted:
            return candidate(self.task, which)
        found: RingVector = original(self, view)
        return found
