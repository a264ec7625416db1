"""Has servers do what ``deviations.py`` names: methods of the real classes, wrapped."""

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, combinations, count
from pathlib import Path
from typing import Protocol

import numpy as np
from tests.faults.deviations import DEVIATIONS, POISON, VICTIM, Deviation

from precad.aggregator import release as releasing
from precad.aggregator.attempt_states import Finished, Matched, Noised, Sent, Summed
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import Collected
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rpc import notices
from precad.aggregator.training import training_loop
from precad.aggregator.training.model_store import (
    InMemory,
    ModelStore,
    Step,
    StoredModel,
)
from precad.aggregator.training.session import Session
from precad.aggregator.validate.check_by_proof import ByProof
from precad.aggregator.validate.validation import Validator
from precad.client.data_owner import DataOwner
from precad.client.participation import RoundView
from precad.common.errors import PeerUnavailable, PrecadError, Rejection
from precad.common.identifiers import ClientId, Digest, Secret
from precad.common.model import ModelVector, byte_view
from precad.common.ring import MODULUS, RingVector
from precad.common.short_words import pack, packed_bytes, step_digest, unpack
from precad.common.task import Task
from precad.norm_check.dealing import Answer, DealerConversation, SquareRequest
from precad.norm_check.norm_proof import ProofWords, Query
from precad.norm_check.proof_submission import AnySubmission, ProofSubmission
from precad.protos import precad_pb2 as pb

Wrap = Callable[[object, str, object], None]  # As ``setattr``
Nothing = Callable[..., None]


class Cheat(Protocol):
    @property
    def now(self) -> Deviation: ...

    def note(self, **what: object) -> None: ...

    def did(self) -> None: ...


def note_in(path: Path, what: object) -> None:
    """Remember something through the process's death; one write: whole or not."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, json.dumps(what).encode() + b"\n")
    finally:
        os.close(descriptor)


class OrderedCheat:
    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._notes = folder / f"{name}.cheat", folder / f"{name}.heard"

    @property
    def wanted(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    @property
    def now(self) -> Deviation:
        return DEVIATIONS.get(self.wanted, Deviation())

    def note(self, **what: object) -> None:
        note_in(self._notes, what)

    def did(self) -> None:
        self.note(did=self.wanted)


def install(cheat: OrderedCheat) -> None:
    wrap(cheat)

    @_wrapping(DataOwner, "update", setattr)
    def update(
        original: Callable[..., RingVector], self: DataOwner, view: RoundView
    ) -> RingVector:
        which = cheat.wanted
        return candidate(self.task, which) if which else original(self, view)


def wrap(cheat: Cheat, put: Wrap = setattr) -> None:
    for part in (_link, _dealing, _words, _collection, _release):
        part(cheat, put)


def _wrapping(
    owner: object, method: str, put: Wrap
) -> Callable[[Callable[..., object]], None]:
    original = getattr(owner, method)

    def replace_with(function: Callable[..., object]) -> None:
        @functools.wraps(original)
        def wrapped(*given: object, **named: object) -> object:
            return function(original, *given, **named)

        put(owner, method, wrapped)

    return replace_with


def _link(cheat: Cheat, put: Wrap) -> None:
    @_wrapping(PeerLink, "send_piece", put)
    def send_piece(
        original: Nothing,
        self: PeerLink,
        step: str,
        piece: bytes | memoryview,
        *,
        last: bool,
    ) -> None:
        name, data = step.split("/", 1)[0], bytes(piece)
        send = (cheat.now.sends or {}).get(name)
        instead = [data] if send is None else send(data)
        if list(instead) != [data]:
            cheat.did()
        for each in instead:
            cheat.note(
                sent=step,
                attempt=self._attempt,
                payload=each.hex(),
                instead_of=data.hex(),
            )
            original(self, step, each, last=last)


def _words(cheat: Cheat, put: Wrap) -> None:
    coins: dict[int, str] = {}

    @_wrapping(ByProof, "_coin", put)
    def coin(
        original: Callable[..., Secret], self: ByProof, digests: Sequence[Digest]
    ) -> Secret:
        found = original(self, digests)
        coins[id(self)] = found.reveal().hex()
        cheat.note(coin=coins[id(self)], decides=[str(each) for each in digests])
        return found

    @_wrapping(ByProof, "_answer", put)
    def answer(
        original: Callable[..., ProofWords],
        self: ByProof,
        submission: ProofSubmission,
        query: Query,
    ) -> ProofWords:
        words = original(self, submission, query)
        said = {"wires": words.wires.tolist(), "value": words.value, "zero": words.zero}
        cheat.note(
            answered=str(submission.header.whole_digest), coin=coins[id(self)], **said
        )
        if (change := cheat.now.own_value) is None:
            return words
        cheat.did()
        return replace(words, value=change(words.value))

    @_wrapping(ByProof, "take", put)
    def take(
        original: Nothing, self: ByProof, submissions: Sequence[AnySubmission]
    ) -> None:
        if cheat.now.turned and len(submissions) > 1:
            cheat.did()
            submissions = submissions[::-1]
        original(self, submissions)
        if cheat.now.hangs_up and submissions:
            cheat.did()
            raise PeerUnavailable("this server has heard enough")


def _collection(cheat: Cheat, put: Wrap) -> None:
    @_wrapping(Inbox, "arrivals", put)
    def arrivals(
        original: Callable[..., list[AnySubmission]], self: Inbox, *rest: object
    ) -> list[AnySubmission]:
        return [] if cheat.now.lists else original(self, *rest)

    @_wrapping(Inbox, "close", put)
    def close(original: Callable[[Inbox], Collected], self: Inbox) -> Collected:
        collected = dict(original(self))
        if cheat.now.denies and not isinstance(collected.get(VICTIM), Rejection | None):
            cheat.did()
            collected[VICTIM] = Rejection.MALFORMED
        return collected


def _release(cheat: Cheat, put: Wrap) -> None:
    @_wrapping(training_loop, "aggregate", put)
    def aggregate(
        original: Callable[..., Summed],
        aggregator: Aggregator,
        matched: Matched,
        validator: Validator | None,
    ) -> Summed:
        # The digest of every set that may turn out valid: both servers can compute them
        # all.
        names = list(matched.submissions)
        for valid in chain(
            *(combinations(names, size) for size in range(len(names) + 1))
        ):
            digest = releasing._set_digest(aggregator, matched, valid)
            cheat.note(possible=str(digest), clients=[client.name for client in valid])
        return original(aggregator, matched, validator)

    @_wrapping(training_loop, "add_noise", put)
    def add_noise(
        original: Callable[..., Noised], summed: Summed, *rest: object
    ) -> Noised:
        noised = original(summed, *rest)
        if not cheat.now.noiseless:
            return noised
        cheat.did()
        return replace(noised, noisy_share=summed.share_sum.copy())

    @_wrapping(PeerLink, "send", put)
    def send(
        original: Nothing, self: PeerLink, step: str, payload: bytes | memoryview
    ) -> None:
        if step != "noisy-share" or not cheat.now.speaks_last:
            original(self, step, payload)

    @_wrapping(releasing, "step", put)
    def step(
        original: Callable[..., Finished],
        aggregator: Aggregator,
        sent: Sent,
        theta: ModelVector,
        theirs: bytes,
    ) -> Finished:
        if cheat.now.speaks_last:
            # This server itself reckons with what it now sends.
            chosen = np.full(theta.size, POISON, dtype=np.int64)
            shares = aggregator.shares
            low = unpack(
                theirs[: packed_bytes(theta.size, shares.bits)], theta.size, shares.bits
            )
            # y_A + y_B = S + p; mod 2^B in the end.
            chosen += np.uint64(shares.group.order % MODULUS).view(np.int64)
            cut = pack(chosen - low, shares.bits)
            cheat.did()
            aggregator.link.send_piece("noisy-share", cut, last=True)
            sent = replace(sent, noisy_share=cut)
        return original(aggregator, sent, theta, theirs)

    @_wrapping(notices, "_sign_for_client", put)
    def say(
        original: Callable[..., pb.Signed],
        session: Session,
        client: ClientId,
        body: pb.OpeningBody | pb.StatementBody,
    ) -> pb.Signed:
        if cheat.now.other_model and isinstance(body, pb.OpeningBody):
            cheat.did()
            body.model_digest = Digest.of(b"another model").value
        return original(session, client, body)

    widths = count()

    @_wrapping(ModelStore, "get", put)
    def get(
        original: Callable[..., StoredModel], self: ModelStore, version: int
    ) -> StoredModel:
        model = original(self, version)
        if cheat.now.other_step and model.step is not None:
            cheat.did()
            # A bit wider each time: no two owners get the same.
            width = 60 + next(widths) % 4
            other = bytes([width]) + pack(
                np.ones(self._task.dimension, np.int64), width
            )
            digest = model.step.digest
            if cheat.now.other_step == "digest":
                digest = step_digest(self._task.digest, version, other)
            return replace(model, step=Step(digest, InMemory(other)))
        if not (cheat.now.other_model or cheat.now.other_bytes):
            return model
        cheat.did()
        theta = np.frombuffer(
            b"".join(model.pieces(1 << 17)), dtype="<f4"
        ) + np.float32(1)
        digest = Digest.of(b"another model") if cheat.now.other_model else model.digest
        return replace(
            model, digest=digest, stored=InMemory(byte_view(theta)), step=None
        )


def _dealing(cheat: Cheat, put: Wrap) -> None:
    @_wrapping(DealerConversation, "ask", put)
    def ask(
        original: Nothing, self: DealerConversation, request: SquareRequest
    ) -> None:
        asks = cheat.now.asks
        if asks is None:
            original(self, request)
            return
        cheat.did()
        # It waits for what it was to ask for, whatever it asks instead.
        self._asked.add(request.context)
        for each in asks(request):
            self._asked.add(each.context)
            self.send(each)

    @_wrapping(DealerConversation, "put", put)
    def answered(
        original: Nothing, self: DealerConversation, context: bytes, answer: Answer
    ) -> None:
        if not (cheat.now.deaf and isinstance(answer, PrecadError)):
            original(self, context, answer)


def candidate(task: Task, which: str) -> RingVector:
    x = np.zeros(task.dimension, dtype=np.int64)
    if which == "longest":
        x[0] = -task.mechanism.bound
    return x
