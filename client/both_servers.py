"""What an owner takes only where both servers say the same: a model, a proof's values.

An owner computes only where three things are one: the model's bytes, server A's
announcement, and the digest that both servers signed for the attempt. So it makes no
difference to the model which server the bytes come from; it only decides whose line
they take. At the end of the training the other server is asked for its digest: then
both are known to have the final model.
"""

from collections.abc import Callable

from precad.common import (
    SERVERS,
    Digest,
    Misconfiguration,
    ModelVector,
    PeerUnavailable,
    PeerViolation,
    Role,
    Task,
    apply_update,
    digest_of_model,
    log,
    read_step,
    step_digest,
)
from precad.common.model import from_bytes
from precad.common.wire import Opening
from precad.norm_check import ForProof


def for_proof(opening_a: Opening, opening_b: Opening) -> ForProof:
    """Return what both servers state for an owner's proof when an attempt opens.

    Raises PeerViolation: they don't name the same holder of the owner's seed, or one of
    them states no proof opening.
    """
    holder = opening_a.seed_holder
    servers_by_name = {role.value: role for role in SERVERS}
    if holder != opening_b.seed_holder or holder not in servers_by_name:
        raise PeerViolation(
            f"server A signed that {holder!r} gets this owner's seed, server"
            f" B {opening_b.seed_holder!r}; nothing is sent"
        )
    try:
        proof_openings = (
            Digest(opening_a.proof_opening),
            Digest(opening_b.proof_opening),
        )
    except Misconfiguration:
        raise PeerViolation(
            "a server signed no opening for a proof; nothing is sent"
        ) from None
    return ForProof(proof_openings, seed_holder=servers_by_name[holder])


def fetched_model(
    task: Task,
    version: int,
    announced: Digest,
    first: Role,
    bytes_of: Callable[[Role, bool], bytes | bytearray],
    digest_of: Callable[[Role], Digest] | None,
) -> ModelVector:
    """Return θ_t, ``[d]``, of the digest that server A announced and both have.

    Args:
        task: the owner's own copy.
        version: t.
        announced: the digest of θ_t in server A's notice.
        first: the server whose line is to be used; the other one is asked where the
            first one fails.
        bytes_of: asks a server for the model's bytes. Its second argument says whether
            this is the last server that can be asked, which has all the time that
            there is.
        digest_of: asks a server for its digest of the model; None where both servers
            have signed it.

    Raises:
        PeerViolation: the servers have different models, or neither serves the
            announced one.
        PeerUnavailable: a server isn't there.
    """
    violations = []
    unavailable = None
    second = next(role for role in SERVERS if role is not first)
    for role, other in ((first, second), (second, first)):
        try:
            theta = from_bytes(bytes_of(role, role is second), task.dimension)
            served = digest_of_model(task, version, theta)
            if served != announced:
                raise PeerViolation(
                    f"{role.title} served model {version} with digest {served}, server"
                    f" A announced {announced}"
                )
        except (PeerUnavailable, PeerViolation, Misconfiguration) as error:
            reason = str(error)
            if isinstance(error, PeerUnavailable):
                unavailable = error
            elif isinstance(error, Misconfiguration):
                reason = f"{role.title} served as model {version}: {error}"
            violations.append(reason)
            if role is first:
                log.warning(
                    "%s; fetching model %d from %s", reason, version, other.title
                )
            continue
        digest = announced if digest_of is None else digest_of(other)
        if digest != announced:
            raise PeerViolation(
                f"server A announced model {version} with digest {announced}, "
                f"{other.title} has {digest}; nothing is sent"
            )
        return theta
    # A server that is away may come back, with the right model.
    raise unavailable or PeerViolation(f"{'; '.join(violations)}; nothing is sent")


def stepped_model(
    before: ModelVector,
    data: bytes | bytearray,
    *,
    task: Task,
    version: int,
    announced: Digest,
    step: Digest,
) -> ModelVector:
    """Return θ_t, ``[d]``, made of θ_{t−1} and a step that a server served.

    Args:
        before: θ_{t−1}, ``[d]``.
        data: the step's bytes.
        task: the owner's own copy.
        version: t.
        announced: the digest of θ_t that both servers signed.
        step: the digest of the step that both servers signed.

    Raises PeerViolation: it isn't that step, or doesn't lead to that model.
    """
    if step_digest(task.digest, version, data) != step:
        raise PeerViolation(f"the step to model {version} isn't what both signed")
    try:
        total = read_step(data, task.mechanism)
        theta = apply_update(before, total, task, task.mechanism.denominator(()))
    except Misconfiguration as error:
        raise PeerViolation(f"the step to model {version} is none: {error}") from None
    digest = digest_of_model(task, version, theta)
    if digest != announced:
        raise PeerViolation(
            f"the step to model {version} leads to {digest}, both signed {announced}"
        )
    return theta
