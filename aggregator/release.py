"""From validated shares to the next model: sum, noise, charge, release, reconstruct."""

from collections.abc import Sequence

import numpy as np

from precad.aggregator import (
    Counted,
    CutShares,
    Finished,
    HeadBody,
    Matched,
    ModelBody,
    Noised,
    NoiseSource,
    Prepared,
    Sent,
    SetCheck,
    Summed,
    exchange,
)
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.store import Store, history_after
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Validator
from precad.common import (
    ClientId,
    Digest,
    ModelVector,
    PeerViolation,
    apply_update,
    derive,
    digest_of,
    digest_of_model,
    step_bytes,
    submission_id,
)
from precad.common.identity import SignedKind
from precad.norm_check import Group


def aggregate(aggregator: Aggregator, matched: Matched, validator: Validator) -> Summed:
    """Validate every matched submission, and sum those that count.

    The two parts of validation are in docs/soundness.md. ``validator`` has taken
    submissions that were matched early.

    Raises PeerViolation: the servers disagree about the valid set. Also raises what the
    validator raises.
    """
    opened = matched.opened
    late = [
        submission
        for client, submission in matched.submissions.items()
        if client not in matched.early
    ]
    for start in range(0, len(late), MAX_BATCH_CLIENTS):
        validator.take(late[start : start + MAX_BATCH_CLIENTS])
    verdicts = validator.decide()
    valid = tuple(
        client
        for client in matched.submissions
        if client not in verdicts.rejections and client in opened.counted
    )
    digest = _set_digest(aggregator, matched, valid)
    own_check = SetCheck(digest=digest.value, count=len(valid))
    their_check = exchange(aggregator.link, "valid-set", own_check)
    if their_check != own_check:
        raise PeerViolation(
            f"the servers disagree at step 'valid-set': ours {own_check.digest.hex()}"
            f" ({own_check.count}), theirs {their_check.digest.hex()}"
            f" ({their_check.count}); nothing more is released"
        )
    for submission in matched.submissions.values():
        submission.discard()
    rejections = {**matched.rejections, **verdicts.rejections}
    return Summed(
        Counted(
            opened=opened,
            valid=valid,
            valid_set=digest,
            rejections=rejections,
            submissions={
                client: submission_id(submission.context.digest.value)
                for client, submission in matched.submissions.items()
            },
        ),
        verdicts.share_sum,
    )


def _set_digest(
    aggregator: Aggregator, matched: Matched, valid: Sequence[ClientId]
) -> Digest:
    """Return the digest of a valid set, for ``aggregate``.

    It is salted with what only the two servers know: anybody could guess the list from
    a digest without salt.
    """
    task = aggregator.task.digest.value
    attempt = matched.opened.attempt
    salt = derive(aggregator.set_secret, "set-salt", task, attempt).reveal()
    parts: list[bytes | int] = [salt, task, attempt]
    for client in valid:
        parts += [
            client.encoded(),
            matched.submissions[client].header.whole_digest.value,
        ]
    return digest_of("valid-set", *parts)


# Noise, prepare, countersign, send: a noisy share leaves at the end of these steps, and
# never changes after the first.
#
# Each step is durable before the message of the next one leaves: *prepared* before this
# server signs its head, *countersigned* (also in the journal file) before the
# countersignature leaves, *sent* before the noisy share does. The model `release_model`
# (tests/model) has the same order, and is searched completely.


def add_noise(summed: Summed, noise: NoiseSource, group: Group) -> Noised:
    """Add this server's own noise to its share of the sum, once."""
    noisy = group.encode(noise.draw(summed.share_sum.size))
    # In place: a large model has room for few vectors, and drawn noise is for one use.
    group.add(noisy, summed.share_sum)
    return Noised(summed.counted, noisy)


def prepare(store: Store, noised: Noised, shares: CutShares) -> Prepared:
    """Charge the valid clients and persist the noisy share, in one transaction, once.

    It is kept in the form in which it leaves.

    Raises AlreadyReleased: the attempt was prepared before, or its version is released.
    """
    counted = noised.counted
    noisy_share = shares.cut(noised.noisy_share)
    store.attempts.prepare(
        counted.opened.attempt,
        counted.valid,
        counted.valid_set,
        counted.rejections,
        noisy_share,
        counted.submissions,
    )
    return Prepared(counted, noisy_share)


def countersign(aggregator: Aggregator, prepared: Prepared) -> Sent:
    """Sign this server's head and countersign the other's; then the share may leave.

    Raises PeerViolation: the servers have prepared different things, or the other
    server countersigned another head than this server's.
    """
    link = aggregator.link
    store = aggregator.store
    signatures = aggregator.signatures
    own_head = _head(aggregator, prepared)
    signed, their_head = signatures.exchange(link, "head", SignedKind.HEAD, own_head)
    if _common(their_head) != _common(own_head):
        raise PeerViolation(
            "the servers disagree on what they have prepared: here"
            f" {_common(own_head)}, there {_common(their_head)}; nothing more is"
            " released"
        )
    store.attempts.countersign(own_head.attempt, their_head, signed)
    kind = SignedKind.COUNTERSIGNATURE
    answer, countersigned = signatures.exchange(
        link, "countersignature", kind, their_head
    )
    if countersigned != own_head:
        raise PeerViolation(
            "the other server countersigned another head than this server's"
        )
    store.attempts.sent(own_head.attempt, answer)
    return Sent(prepared.counted, prepared.noisy_share)


def _head(aggregator: Aggregator, prepared: Prepared) -> HeadBody:
    """Return this server's head for a prepared attempt, its own charge included."""
    ledger = aggregator.store.ledger
    opened = prepared.counted.opened
    head = ledger.head()
    version = opened.version
    history = history_after(ledger.history(version), ledger.facts(version))
    return HeadBody(
        task=aggregator.task.digest.value,
        version=version,
        attempt=opened.attempt,
        valid_set=prepared.counted.valid_set.value,
        length=head.length,
        head=head.head.value,
        history=history.value,
    )


def _common(head: HeadBody) -> str:
    """Return what both servers' heads of one attempt have alike, as JSON."""
    return head.model_dump_json(exclude={"length", "head"})


def reconstruct(aggregator: Aggregator, sent: Sent, theta: ModelVector) -> Finished:
    """Exchange noisy shares, and make the next model of their sum.

    The sum is decoded, divided by the fixed denominator, and θ_t steps by it with η.
    The next model is kept, and shown to anybody, only once the other server has signed
    the same digest: a server that loses it later takes it back on its own signature.

    ``theta`` is θ_t, ``[d]``. A large model has room for few vectors: where it is
    float32, θ_{t+1} is written in its place.

    Raises PeerViolation: the other's share isn't one, as ``CutShares.joined``; or its
    next model differs.
    """
    signatures = aggregator.signatures
    theirs = aggregator.link.exchange("noisy-share", sent.noisy_share)
    finished = step(aggregator, sent, theta, theirs)
    version = finished.opened.version + 1
    own_model = ModelBody(
        task=aggregator.task.digest.value,
        version=version,
        digest=finished.model.value,
    )
    signed, their_model = signatures.exchange(
        aggregator.link, "model", SignedKind.MODEL, own_model
    )
    if their_model != own_model:
        raise PeerViolation(
            f"the servers computed different models of version {version}:"
            f" {own_model.digest.hex()} here, {their_model.digest.hex()} there; nothing"
            " more is released"
        )
    aggregator.store.versions.keep_model_seal(version, signed)
    return finished


def step(
    aggregator: Aggregator,
    sent: Sent,
    theta: ModelVector,
    theirs: bytes,
) -> Finished:
    """Make θ_{t+1} from θ_t and both servers' noisy shares, as they travelled.

    ``theta`` is θ_t, ``[d]``; where it is float32, θ_{t+1} is written in its place.

    Raises PeerViolation: as ``reconstruct``.
    """
    task = aggregator.task
    counted = sent.counted
    noisy_sum = aggregator.shares.joined(sent.noisy_share, theirs)
    out = theta if theta.dtype == np.float32 else None
    denominator = task.mechanism.denominator(aggregator.roster.values())
    stepped = apply_update(
        theta,
        noisy_sum,
        task,
        denominator,
        out,
    )
    version = counted.opened.version + 1
    digest = digest_of_model(task, version, stepped)
    compact = task.mechanism.compact_release
    return Finished(
        opened=counted.opened,
        valid=counted.valid,
        rejections=counted.rejections,
        noisy_sum=noisy_sum,
        theta=stepped,
        model=digest,
        step=step_bytes(noisy_sum, task.mechanism) if compact else None,
    )
