"""What an owner takes only where both servers say the same: the model, and what a proof is for.

An owner computes only where the model's bytes, server A's announcement and the digest
that both signed for the attempt are one, so which server the bytes come from changes
nothing but whose line they take. At the end the other server is asked for its digest:
both know who has the final model.
"""

import logging
from collections.abc import Callable

from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.model import ModelVector, from_bytes, model_digest
from precad.common.task import Task
from precad.common.wire import messages as wire
from precad.norm_check.proof_submission import ForProof

log = logging.getLogger("precad")

SERVERS = (Role.SERVER_A, Role.SERVER_B)


def for_proof(of_a: wire.Opening, of_b: wire.Opening) -> ForProof:
    """What both state for a proof.

    Raises PeerViolation: nothing, or not the same holder.
    """
    holders = {role.value: role for role in SERVERS}
    if of_a.seed_holder != of_b.seed_holder or of_a.seed_holder not in holders:
        raise PeerViolation(
            f"server A signed that {of_a.seed_holder!r} gets this owner's seed, server"
            f" B {of_b.seed_holder!r}; nothing is sent"
        )
    try:
        openings = Digest(of_a.proof_opening), Digest(of_b.proof_opening)
    except Misconfiguration:
        raise PeerViolation(
            "a server signed no opening for a proof; nothing is sent"
        ) from None
    return ForProof(openings, holders[of_a.seed_holder])


def fetched_model(
    task: Task,
    version: int,
    announced: Digest,
    first: Role,
    bytes_of: Callable[[Role, bool], bytes | bytearray],
    digest_of: Callable[[Role], Digest] | None,
) -> ModelVector:
    """θ_t, ``[d]``, of the digest that server A announced and both servers have.

    ``first`` is whose line it is to take. ``bytes_of`` asks a server for the model's
    bytes, and is told whether it is the last one that can be asked, which has all the
    time that there is. ``digest_of`` asks one for its digest; None where both have
    signed it.

    Raises PeerViolation: the servers have different models, or neither serves the
    announced one. PeerUnavailable: a server isn't there.
    """
    wrong: list[str] = []
    away: PeerUnavailable | None = None
    second = next(role for role in SERVERS if role is not first)
    for role, other in ((first, second), (second, first)):
        last = role is second
        try:
            theta = _checked(
                task,
                version,
                announced,
                role,
                bytes_of(role, last),
            )
        except PeerUnavailable as error:
            away = error
            why = str(error)
        except PeerViolation as error:
            wrong.append(why := str(error))
        else:
            if digest_of is not None and (found := digest_of(other)) != announced:
                raise PeerViolation(
                    f"server A announced model {version} with digest {announced}, "
                    f"{other.title} has {found}; nothing is sent"
                )
            return theta
        if not last:
            log.warning("%s; fetching model %d from %s", why, version, other.title)
    # A server that is away may come back, with the right one.
    raise away or PeerViolation(f"{'; '.join(wrong)}; nothing is sent")


def _checked(
    task: Task,
    version: int,
    announced: Digest,
    role: Role,
    data: bytes | bytearray,
) -> ModelVector:
    """Raises PeerViolation: the bytes aren't the announced model's."""
    try:
        theta = from_bytes(data, task.dimension)
    except Misconfiguration as error:
        raise PeerViolation(
            f"{role.title} served as model {version}: {error}"
        ) from None
    digest = model_digest(task.digest, version, task.model.parameters, theta)
    if digest != announced:
        raise PeerViolation(
            f"{role.title} served model {version} with digest {digest}, server A"
            f" announced {announced}"
        )
    return theta
