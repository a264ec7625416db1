"""The check of norms without processes: proofs, and requests for squares.

What each party computes is precad's own; a client that cheats changes words before they
are signed, a server what it sends.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
from tests.rig.documents import Arguments
from tests.rig.memory_link import memory_pair

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate import check_by_proof, validation
from precad.common.identifiers import SERVERS, ClientId, Digest, Role, Secret
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import RingVector, commit, dot, mask_stream
from precad.common.submission import (
    HeldBody,
    Signature,
    Signer,
    SubmissionContext,
)
from precad.common.task import Task
from precad.norm_check import dealing, share_update
from precad.norm_check import proof_submission as proofs
from precad.norm_check.norm_proof import ProofWords, Query
from precad.norm_check.prime_field import FieldVector, arithmetic
from precad.norm_check.proof_submission import ProofHeader, ProofSubmission

A, B = SERVERS
TASK, WARD = Digest(b"t" * 32), ClientId("ward-0")
OPENINGS = Digest(b"a" * 32), Digest(b"b" * 32)
SEGMENTS = ("update", "bits", "proof")  # Of a body, in their order
Pair = tuple[ProofSubmission, ProofSubmission]
Tamper = Callable[[str, bytes], bytes]


class Unchecked:
    def sign(self, signed: bytes) -> Signature:
        return Signature(Digest.of(signed).value, (b"certificate",))


UNCHECKED = Unchecked()


def resigned(header: ProofHeader, pen: Signer = UNCHECKED) -> ProofHeader:
    return replace(header, signature=pen.sign(header.signed))


def other(role: Role) -> Role:
    return B if role is A else A


def changed(vector: FieldVector, at: int, by: int = 1) -> FieldVector:
    found = vector.copy()
    found[at] = (int(found[at]) + by) % P
    return found


def update(shape: ProofShape, norm: float | None = None, seed: int = 1) -> RingVector:
    """Of that norm, nearly β unless another is given; at most it."""
    v = np.random.default_rng(seed).standard_normal(shape.dimension)
    wanted = shape.bound * 0.99 if norm is None else norm
    return np.trunc(v / np.linalg.norm(v) * wanted).astype(np.int64)


def shape_of(task: Task) -> ProofShape:
    """The sizes of the proofs of a task that has proofs."""
    assert task.proof is not None
    return task.proof


def context(
    task: Digest = TASK, client: ClientId = WARD, attempt: int = 3
) -> SubmissionContext:
    return SubmissionContext(
        task=task,
        version=attempt,
        attempt=attempt,
        client=client,
        model=Digest(b"m" * 32),
        nonce=bytes(32),
    )


def shared(
    shape: ProofShape,
    x: RingVector | None = None,
    holder: Role = A,
    of: SubmissionContext | None = None,
) -> Pair:
    given, stated = update(shape) if x is None else x, proofs.ForProof(OPENINGS, holder)
    to_a, to_b = share_update.share_with_proof(
        given, shape, of or context(), stated, UNCHECKED
    )
    return (to_a, to_b) if holder is A else (to_b, to_a)


def segments(shape: ProofShape, body: ProofSubmission) -> dict[str, FieldVector]:
    assert isinstance(body.body, HeldBody)
    words = np.frombuffer(body.body.words, dtype="<u8")
    ends = shape.dimension, shape.dimension + shape.bits
    return {
        name: part.copy()
        for name, part in zip(SEGMENTS, np.split(words, ends), strict=True)
    }


def written_of(shape: ProofShape, pair: Pair) -> FieldVector:
    seed, body = pair
    assert seed.seed is not None
    own = seed.header.stream(seed.seed, "e").words(shape.bits)
    return arithmetic().add(own, segments(shape, body)["bits"])


def with_segments(
    body: ProofSubmission, parts: dict[str, FieldVector]
) -> ProofSubmission:
    assert body.body is not None
    words = np.concatenate([parts[name] for name in SEGMENTS])
    return replace(
        body, body=HeldBody(body.body.prefix, words.astype("<u8").data.cast("B"))
    )


def signed_again(
    pair: Pair, parts: dict[str, FieldVector], pen: Signer = UNCHECKED
) -> Pair:
    """Other words in the body, hashed and signed by a client that means them."""
    seed, body = pair
    assert body.body is not None
    ctx, (salt, mask_seed) = body.header.ctx, proofs.halves(body.body.prefix)
    hashers = {name: proofs.body_hasher(name, ctx, salt) for name in ("update", "bits")}
    hashers["proof"] = proofs.body_hasher("proof", ctx, salt, mask_seed)
    for name, words in parts.items():
        hashers[name].update(words.astype("<u8").tobytes())
    digests: Arguments = {
        f"{name}_digest": Digest(each.digest()) for name, each in hashers.items()
    }
    header = resigned(replace(body.header, **digests), pen)
    return replace(seed, header=header), replace(
        with_segments(body, parts), header=header
    )


def answer_of(part: ProofSubmission, shape: ProofShape, query: Query) -> ProofWords:
    """A server's words of one submission, which it doesn't count."""
    server = SimpleNamespace(bound_of=lambda _: shape.bound)
    check = SimpleNamespace(_shape=shape, _counted=(), _server=server)
    by_proof = cast("check_by_proof.ByProof", check)
    answer = check_by_proof.ByProof._answer(by_proof, part, query)
    return cast("ProofWords", answer)


class Link(PeerLink):
    """Changes what this server sends, where it is told to, and nothing else."""

    tamper: Tamper | None = None

    def send(self, step: str, payload: bytes | memoryview) -> None:
        super().send(
            step, self.tamper(step, bytes(payload)) if self.tamper else payload
        )


@dataclass
class Side:
    """What a check of proofs needs of one server."""

    role: Role
    task: Task
    link: Link

    def bound_of(self, _: ClientId) -> int:
        return self.task.mechanism.bound


def servers(task: Task) -> dict[Role, Side]:
    ends = zip(SERVERS, memory_pair(), strict=True)
    link = partial(Link, task=task.digest, max_message_bytes=1 << 20, timeout_s=60)
    return {
        role: Side(role=role, task=task, link=link(transport=end)) for role, end in ends
    }


def noted(*some: Side) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []

    def note(step: str, data: bytes) -> bytes:
        found.append((step, data))
        return data

    for server in some:
        server.link.tamper = note
    return found


def play(
    both: dict[Role, Side],
    held: dict[Role, list[ProofSubmission]],
    counted: Sequence[ClientId],
    batches: Sequence[slice] = (slice(None),),
) -> dict[Role, validation.Verdicts]:
    def side(role: Role) -> validation.Verdicts:
        check = check_by_proof.ByProof(
            cast("validation.Server", both[role]), 3, counted
        )
        try:
            check.ready()
            for batch in batches:
                check.take(held[role][batch])
        except BaseException:
            # So that the other one doesn't wait for what won't come.
            both[role].link.send("gone", b"")
            raise
        return check.decide()

    with ThreadPoolExecutor(2) as threads:
        running = {role: threads.submit(side, role) for role in SERVERS}
        failed = [e for each in running.values() if (e := each.exception()) is not None]
        for error in sorted(failed, key=lambda each: "'gone'" in str(each)):
            raise error
        return {role: each.result() for role, each in running.items()}


@dataclass(frozen=True, slots=True)
class Halves:
    """Both servers' requests for one context, and the mask that they stand for."""

    of: Mapping[Role, dealing.SquareRequest]
    mask: RingVector

    @property
    def context(self) -> bytes:
        return self.of[Role.SERVER_A].context

    @property
    def square(self) -> int:
        return dot(self.mask, self.mask)


def halves(
    task: Digest, name: str, dimension: int, attempt: int = 0, **same: Secret
) -> Halves:
    """A client's: fresh seeds and salts, unless both servers are to have given ones."""
    ctx = Digest.of(name.encode())
    seeds = {role: same.get("seed") or Secret.random() for role in SERVERS}
    salts = {role: same.get("salt") or Secret.random() for role in SERVERS}
    c_a, c_b = (
        commit(role, ctx, salt=salts[role], seed=seeds[role]) for role in SERVERS
    )
    requests = {
        role: dealing.SquareRequest(
            task=task,
            attempt=attempt,
            context=ctx.value,
            commitment_a=c_a.value,
            commitment_b=c_b.value,
            seed=seeds[role],
            salt=salts[role],
        )
        for role in SERVERS
    }
    parts = [
        mask_stream(
            seeds[role], role, ctx=ctx, commitment_a=c_a, commitment_b=c_b
        ).words(dimension)
        for role in SERVERS
    ]
    return Halves(requests, np.add(*parts))
