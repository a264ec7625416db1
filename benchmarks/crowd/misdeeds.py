"""Every way of being bad that the wire allows, and what each must come to.

The vectors are those of docs/soundness.md, "What must be rejected, and what accepted".

A misdeed is what one drawn client does in one round; it returns what the servers
answered, upload by upload. Beside it stands how that client's round must end, and what
the answers must be.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
from tests.rig.submissions import body_of, signed_anew, with_body

from benchmarks.crowd.client import HELD, LoadClient, Pair
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest, Secret
from precad.common.ring import RingVector
from precad.common.submission import SubmissionContext, shard
from precad.common.task import Task
from precad.norm_check.submission_messages import upload_pieces
from precad.protos import precad_pb2 as pb

COUNTED = "counted"
DENIED = "PERMISSION_DENIED"
LEAST = -(2**63)
BOTH_HELD = (HELD, HELD)
Answers = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """What a client knows when it acts."""

    event: pb.RoundOpen
    honest: RingVector
    """``[d] int64``: what it would send if it were honest."""
    other: LoadClient
    """Somebody else, whose name or key may be tried."""


Act = Callable[[LoadClient, Scene], Awaitable[Answers]]
Forge = Callable[[Task], RingVector]


@dataclass(frozen=True, slots=True)
class Misdeed:
    """An act, and what must come of it."""

    name: str
    act: Act
    outcome: str
    """``counted``, or the reason that the client hears at the round's end."""
    answers: Answers


async def be_honest(client: LoadClient, scene: Scene) -> Answers:
    """Fetch the model, then send each server its submission, at once."""
    await client.fetch_model(scene.event)
    return await _both(client, client.prepare(scene.event, scene.honest))


async def say_nothing(client: LoadClient, scene: Scene) -> Answers:
    """Absent, with the notices still open."""
    del client, scene
    return ()


HONEST = Misdeed("honest", be_honest, COUNTED, BOTH_HELD)
SILENT = Misdeed("silent", say_nothing, Rejection.ABSENT.value, ())


def single(task: Task, value: int, at: int = 0) -> RingVector:
    """One coordinate is ``value``, the others 0."""
    x = np.zeros(task.dimension, dtype=np.int64)
    x[at] = value
    return x


def _square_zero(task: Task) -> RingVector:
    x = np.zeros(task.dimension, dtype=np.int64)
    x[:3] = 2**32, 3 * 2**33, -(2**40)
    return x


def _multiples(task: Task) -> RingVector:
    shift = secrets.randbelow(64)
    words = (
        np.frombuffer(secrets.token_bytes(8 * task.dimension), dtype=np.int64) << shift
    )
    words[0] |= np.int64(1) << shift  # not zero, also where the shift is 63
    return words


def _spread(task: Task, factor: int) -> RingVector:
    """Norm ``factor``·β, spread evenly."""
    each = math.ceil(factor * task.mechanism.bound / math.sqrt(task.dimension))
    return np.full(task.dimension, each, dtype=np.int64)


_FORGED: dict[str, Forge] = {
    "squared norm 0": _square_zero,
    "-2^63 once": lambda t: single(t, LEAST),
    "15 beta once": lambda t: single(t, 15 * t.mechanism.bound),
    "multiples of 2^i": _multiples,
    "beta + 1 units": lambda t: single(t, t.mechanism.bound + 1),
    "2 beta spread": lambda t: _spread(t, 2),
}


def _submits(forge: Forge) -> Act:
    async def act(client: LoadClient, scene: Scene) -> Answers:
        return await _both(client, client.prepare(scene.event, forge(client.task)))

    return act


async def _long_body(client: LoadClient, scene: Scene) -> Answers:
    a, b = client.prepare(scene.event, scene.honest)
    return await _both(client, (a, with_body(b, body_of(b) + bytes(8))))


async def _other_seed(client: LoadClient, scene: Scene) -> Answers:
    """At server A: it opens nothing."""
    a, b = client.prepare(scene.event, scene.honest)
    return await _both(client, (replace(a, seed=Secret.random()), b))


async def _signed_twice(client: LoadClient, scene: Scene) -> Answers:
    """One header, two good signatures."""
    a, b = client.prepare(scene.event, scene.honest)
    return await _both(
        client, (a, replace(b, header=signed_anew(b.header, client.signer)))
    )


async def _truncated(client: LoadClient, scene: Scene) -> Answers:
    a, b = client.prepare(scene.event, scene.honest)
    header, salt_h, first, *_ = upload_pieces(b)
    # All of one piece but a byte: what is kept back doesn't depend on the piece's
    # length.
    partial = pb.SubmissionPiece(body=first.body[:-1])
    sent = iter([header, salt_h, partial])
    return await client.send(a), await client.send_pieces(b.role, sent)


async def _broken_off(client: LoadClient, scene: Scene) -> Answers:
    """A holds its submission; the stream to B is cancelled midway."""
    a, b = client.prepare(scene.event, scene.honest)
    header, salt_h, first, *_ = upload_pieces(b)

    async def pieces() -> AsyncIterator[pb.SubmissionPiece]:
        yield header
        yield salt_h
        yield pb.SubmissionPiece(body=first.body[:-1])
        await asyncio.Event().wait()

    return await client.send(a), await client.send_pieces(
        b.role, pieces(), timeout_s=3.0
    )


async def _second_thoughts(client: LoadClient, scene: Scene) -> Answers:
    """An honest submission, the same bytes again, then another one."""
    pair = client.prepare(scene.event, scene.honest)
    worse = client.prepare(
        scene.event, single(client.task, client.task.mechanism.bound + 1)
    )
    return (
        *await _both(client, pair),
        *await _both(client, pair),
        *await _both(client, worse),
    )


async def _two_vectors(client: LoadClient, scene: Scene) -> Answers:
    """One vector's submission to A, another's to B."""
    first = client.prepare(scene.event, scene.honest)
    second = client.prepare(scene.event, single(client.task, 2))
    return await _both(client, (first[0], second[1]))


async def _only_a(client: LoadClient, scene: Scene) -> Answers:
    return (await client.send(client.prepare(scene.event, scene.honest)[0]),)


async def _other_task(client: LoadClient, scene: Scene) -> Answers:
    other = Digest(secrets.token_bytes(32))
    return await _both(client, _shard(client, scene, task=other))


async def _round_gone_by(client: LoadClient, scene: Scene) -> Answers:
    return await _both(client, _shard(client, scene, attempt=scene.event.attempt - 1))


async def _other_model(client: LoadClient, scene: Scene) -> Answers:
    return await _both(
        client, _shard(client, scene, model=Digest(secrets.token_bytes(32)))
    )


async def _others_name(client: LoadClient, scene: Scene) -> Answers:
    return await _both(client, _shard(client, scene, client_id=scene.other.client))


async def _others_key(client: LoadClient, scene: Scene) -> Answers:
    """The own name, with a signature and certificate of somebody else."""
    a, b = client.prepare(scene.event, scene.honest)
    stolen = scene.other.prepare(scene.event, scene.honest)[0].header.signature
    header = replace(a.header, signature=stolen)
    return await _both(client, (replace(a, header=header), replace(b, header=header)))


async def _unsigned(client: LoadClient, scene: Scene) -> Answers:
    answers = []
    for submission in client.prepare(scene.event, scene.honest):
        header, *body = upload_pieces(submission)
        header.header.ClearField("signature")
        header.header.ClearField("certificates")
        answers.append(await client.send_pieces(submission.role, iter([header, *body])))
    return tuple(answers)


_ABSENT, _MALFORMED = Rejection.ABSENT.value, Rejection.MALFORMED.value
_TRUNCATED, _DUPLICATE = Rejection.TRUNCATED.value, Rejection.DUPLICATE.value
_UNMATCHED, _NORM_EXCEEDED = Rejection.UNMATCHED.value, Rejection.NORM_EXCEEDED.value
_BAD_SIGNATURE, _WRONG_MODEL = (
    Rejection.BAD_SIGNATURE.value,
    Rejection.WRONG_MODEL.value,
)
_SECOND = (*BOTH_HELD, *BOTH_HELD, _DUPLICATE, _DUPLICATE)

MISDEEDS: tuple[Misdeed, ...] = (
    *(
        Misdeed(name, _submits(forge), _NORM_EXCEEDED, BOTH_HELD)
        for name, forge in _FORGED.items()
    ),
    Misdeed("wrong length at B", _long_body, _MALFORMED, (HELD, _MALFORMED)),
    Misdeed("another seed at A", _other_seed, _MALFORMED, (_MALFORMED, HELD)),
    Misdeed("signed twice", _signed_twice, _UNMATCHED, BOTH_HELD),
    Misdeed("truncated at B", _truncated, _TRUNCATED, (HELD, _TRUNCATED)),
    Misdeed("broken off at B", _broken_off, _TRUNCATED, (HELD, "DEADLINE_EXCEEDED")),
    Misdeed("duplicate", _second_thoughts, COUNTED, _SECOND),
    Misdeed("two vectors", _two_vectors, _UNMATCHED, BOTH_HELD),
    Misdeed("only to A", _only_a, _UNMATCHED, (HELD,)),
    Misdeed("another task", _other_task, _ABSENT, (Rejection.WRONG_TASK.value,) * 2),
    Misdeed(
        "a round gone by", _round_gone_by, _ABSENT, (Rejection.WRONG_ATTEMPT.value,) * 2
    ),
    Misdeed("another model", _other_model, _WRONG_MODEL, (_WRONG_MODEL,) * 2),
    Misdeed("another's name", _others_name, _ABSENT, (DENIED,) * 2),
    Misdeed("another's key", _others_key, _BAD_SIGNATURE, (_BAD_SIGNATURE,) * 2),
    Misdeed("unsigned", _unsigned, _BAD_SIGNATURE, (_BAD_SIGNATURE,) * 2),
    SILENT,
)
"""Each needs a round whose number is at least 1 (``a round gone by``)."""

UNINVITED = Misdeed("not drawn", be_honest, "", (Rejection.NOT_SELECTED.value,) * 2)
"""A submission of a client that wasn't drawn: it has no outcome."""


def _shard(
    client: LoadClient,
    scene: Scene,
    *,
    task: Digest | None = None,
    attempt: int | None = None,
    client_id: ClientId | None = None,
    model: Digest | None = None,
) -> Pair:
    """An honest pair in all but the fields given."""
    return shard(
        scene.honest,
        SubmissionContext(
            task=task or client.task.digest,
            version=scene.event.version,
            attempt=scene.event.attempt if attempt is None else attempt,
            client=client_id or client.client,
            model=model or Digest(scene.event.model_digest),
        ),
        client.signer,
    )


async def _both(client: LoadClient, pair: Pair) -> Answers:
    return tuple(await asyncio.gather(*(client.send(item) for item in pair)))
