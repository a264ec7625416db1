"""θ_t from one server, checked against both; from the other where the first fails.

An owner computes only where the model's bytes, server A's announcement and the digest that both
signed for the attempt are one, so which server the bytes come from changes nothing but whose line
they take. At the end the other server is asked for its digest: both know who has the final model.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

import grpc

from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.model import ModelVector, from_bytes, model_digest, most_bytes
from precad.common.task import Task

log = logging.getLogger("precad")

_OTHER = {Role.SERVER_A: Role.SERVER_B, Role.SERVER_B: Role.SERVER_A}


def fetched_model(
    task: Task,
    version: int,
    announced: Digest,
    first: Role,
    bytes_of: Callable[[Role, bool], bytes | bytearray],
    digest_of: Callable[[Role], Digest] | None,
) -> ModelVector:
    """θ_t, ``[d]``, of the digest that server A announced and both servers have.

    Args:
        task: gives d and what the digest is over.
        version: t.
        announced: by A.
        first: whose line it is to take.
        bytes_of: asks a server for the model's bytes; told whether it is the last one that can be
            asked, and so has all the time that there is. Raises PeerUnavailable, PeerViolation.
        digest_of: asks a server for its digest; None where both have signed it. Raises as
            ``bytes_of``.

    Raises:
        PeerViolation: the servers have different models, or neither serves the announced one.
        PeerUnavailable: a server isn't there.
    """
    wrong: list[str] = []
    away: PeerUnavailable | None = None
    for role in (first, _OTHER[first]):
        last = role is not first
        try:
            theta = _checked(task, version, announced, role, bytes_of(role, last))
        except PeerUnavailable as error:
            away, why = error, str(error)
        except PeerViolation as error:
            wrong.append(why := str(error))
        else:
            if digest_of is not None and (found := digest_of(_OTHER[role])) != announced:
                raise PeerViolation(
                    f"server A announced model {version} with digest {announced}, "
                    f"{_OTHER[role].title} has {found}; nothing is sent"
                )
            return theta
        if not last:
            log.warning("%s; fetching model %d from %s", why, version, _OTHER[role].title)
    # A server that is away may come back, with the right one.
    raise away or PeerViolation(f"{'; '.join(wrong)}; nothing is sent")


def _checked(
    task: Task, version: int, announced: Digest, role: Role, data: bytes | bytearray
) -> ModelVector:
    """Raises PeerViolation: the bytes aren't the announced model's."""
    try:
        theta = from_bytes(data, task.dimension)
    except Misconfiguration as error:
        raise PeerViolation(f"{role.title} served as model {version}: {error}") from None
    digest = model_digest(task.digest, version, task.model.parameters, theta)
    if digest != announced:
        raise PeerViolation(
            f"{role.title} served model {version} with digest {digest}, server A announced "
            f"{announced}"
        )
    return theta


def gathered(pieces: Any, role: Role, dimension: int, idle_s: float | None) -> bytearray:
    """The bytes of a FetchModel call, as long as some come within every ``idle_s``.

    Raises:
        PeerViolation: they are more than any model has.
        PeerUnavailable: none came for so long.
        grpc.RpcError: the call failed.
    """
    data, most = bytearray(), most_bytes(dimension)
    over, idle = threading.Event(), threading.Event()

    def watch() -> None:
        came = 0
        while not over.wait(idle_s):
            if len(data) == came:
                idle.set()
                pieces.cancel()
                return
            came = len(data)

    if idle_s is not None:
        threading.Thread(target=watch, name="fetch", daemon=True).start()
    try:
        for piece in pieces:
            data += piece.data
            if len(data) > most:
                pieces.cancel()
                raise PeerViolation(f"{role.title} served a model longer than {most} bytes")
    except grpc.RpcError:
        if idle.is_set():
            raise PeerUnavailable(f"{role.title} served nothing for {idle_s:g} s") from None
        raise
    finally:
        over.set()
    return data
