"""From validated shares to the next model: sum, noise, charge, release, reconstruct."""

from collections.abc import Sequence

import numpy as np

from precad.aggregator.attempt_states import (
    Counted,
    Finished,
    Matched,
    Noised,
    Prepared,
    Sent,
    Summed,
)
from precad.aggregator.noise import NoiseSource
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.server_messages import HeadBody, ModelBody, SetCheck, exchange
from precad.aggregator.store import Store
from precad.aggregator.store.ledger import history_after
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Validator
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest
from precad.common.identity.signatures import SignedKind
from precad.common.model import ModelVector, apply_update, model_digest
from precad.common.ring import RingVector, byte_view, derive, encode_context
from precad.norm_check.prime_field import Group, group_of


def aggregate(
    aggregator: Aggregator, matched: Matched, validator: Validator | None = None
) -> Summed:
    """Both parts of docs/soundness.md for every matched submission, then the sum of the valid ones.

    ``validator`` has taken those that were matched early; all are validated here
    without one. Raises as it does, and PeerViolation: the servers disagree about the
    valid set.
    """
    opened = matched.opened
    if validator is None:
        with aggregator.in_process(opened) as alone:
            return aggregate(aggregator, matched, alone)
    late = [
        s for client, s in matched.submissions.items() if client not in matched.early
    ]
    for start in range(0, len(late), MAX_BATCH_CLIENTS):
        validator.take(late[start : start + MAX_BATCH_CLIENTS])
    verdicts = validator.decide()
    valid = (
        client for client in matched.submissions if client not in verdicts.rejections
    )
    counted = tuple(client for client in valid if client in opened.counted)
    digest = _set_digest(aggregator, matched, counted)
    own = SetCheck(digest=str(digest), count=len(counted))
    theirs = exchange(aggregator.link, "valid-set", own)
    if theirs != own:
        raise PeerViolation(
            f"the servers disagree at step 'valid-set': ours {own.digest}"
            f" ({own.count}), theirs {theirs.digest} ({theirs.count}); nothing more is"
            " released"
        )
    for submission in matched.submissions.values():
        submission.discard()
    rejections = {**matched.rejections, **verdicts.rejections}
    return Summed(
        Counted(
            opened=opened,
            valid=counted,
            valid_set=digest,
            rejections=rejections,
        ),
        verdicts.share_sum,
    )


def _set_digest(
    aggregator: Aggregator, matched: Matched, valid: Sequence[ClientId]
) -> Digest:
    """Salted with what only the two servers know: else the digest were the list itself."""
    task = aggregator.task.digest.value
    attempt = matched.opened.attempt
    salt = derive(aggregator.set_secret, "set-salt", task, attempt).reveal()
    parts: list[bytes | int] = [salt, task, attempt]
    for client in valid:
        parts += [
            client.encoded(),
            matched.submissions[client].header.whole_digest.value,
        ]
    return Digest.of(encode_context("valid-set", *parts))


# Noise, prepare, countersign, send: when a noisy share may leave, and that it never
# changes.
#
# Each step is durable before the next one's words leave: *prepared* before the own head
# is signed, *countersigned* (also in the file outside the database) before the
# countersignature leaves, *sent* before the noisy share does. `release_model`
# (tests/model) is the same order, searched.


def add_noise(summed: Summed, noise: NoiseSource, group: Group) -> Noised:
    """Add this server's own noise, once."""
    noisy = group.encode(noise.draw(summed.share_sum.size))
    # In place: a large model has room for few vectors, and drawn noise is for one use.
    group.add(noisy, summed.share_sum)
    return Noised(summed.counted, noisy)


def prepare(store: Store, noised: Noised) -> Prepared:
    """Charge the ledger and persist the noisy share, in one, once.

    Raises AlreadyReleased.
    """
    counted = noised.counted
    noisy = byte_view(noised.noisy_share)
    attempt = counted.opened.attempt
    valid = counted.valid
    store.attempts.prepare(
        attempt,
        valid,
        counted.valid_set,
        counted.rejections,
        noisy,
    )
    return Prepared(counted, noised.noisy_share)


def countersign(aggregator: Aggregator, prepared: Prepared) -> Sent:
    """Sign the own head, countersign the other's; with both, the noisy share may leave."""
    link = aggregator.link
    store = aggregator.store
    signatures = aggregator.signatures
    own = _head(aggregator, prepared)
    theirs, head = signatures.exchange(link, "head", SignedKind.HEAD, own)
    if _common(head) != _common(own):
        raise PeerViolation(
            f"the servers disagree on what they have prepared: here {_common(own)},"
            f" there {_common(head)}; nothing more is released"
        )
    store.attempts.countersign(own.attempt, head, theirs)
    kind = SignedKind.COUNTERSIGNATURE
    answer, countersigned = signatures.exchange(link, "countersignature", kind, head)
    if countersigned != own:
        raise PeerViolation(
            "the other server countersigned another head than this server's"
        )
    store.attempts.sent(own.attempt, answer)
    return Sent(prepared.counted, prepared.noisy_share)


def _head(aggregator: Aggregator, prepared: Prepared) -> HeadBody:
    store = aggregator.store
    opened = prepared.counted.opened
    head = store.ledger.head()
    version = opened.version
    return HeadBody(
        task=str(aggregator.task.digest),
        version=version,
        attempt=opened.attempt,
        valid_set=str(prepared.counted.valid_set),
        length=head.length,
        head=str(head.head),
        history=str(
            history_after(store.ledger.history(version), store.ledger.facts(version))
        ),
    )


def _common(head: HeadBody) -> tuple[str, int, int, str, str]:
    return head.task, head.version, head.attempt, head.valid_set, head.history


def reconstruct(aggregator: Aggregator, sent: Sent, theta: ModelVector) -> Finished:
    """Exchange noisy shares, decode, divide by the fixed denominator, step with η.

    The next model is kept, and shown to anybody, only once the other server has signed
    the same digest: a server that loses it later takes it back on its own signature. A
    large model has room for few vectors: θ_t becomes θ_{t+1} where it is float32.

    Raises PeerViolation: the other's share has another size or words, or its next model
    differs.
    """
    link = aggregator.link
    signatures = aggregator.signatures
    link.send("noisy-share", byte_view(sent.noisy_share))
    other_share = np.empty(aggregator.task.dimension, dtype="<i8")
    link.receive_into("noisy-share", byte_view(other_share))
    words = other_share.astype(np.int64, copy=False)
    at = group_of(aggregator.task).first_foreign(words)
    if at is not None:
        raise PeerViolation(
            f"word {at} of the other server's noisy share isn't of the field"
        )
    finished = step(aggregator, sent, theta, words)
    version = finished.opened.version + 1
    own = ModelBody(
        task=str(aggregator.task.digest),
        version=version,
        digest=str(finished.model),
    )
    theirs, found = signatures.exchange(link, "model", SignedKind.MODEL, own)
    if found != own:
        raise PeerViolation(
            f"the servers computed different models of version {version}: {own.digest}"
            f" here, {found.digest} there; nothing more is released"
        )
    aggregator.store.versions.keep_model_seal(version, theirs)
    return finished


def step(
    aggregator: Aggregator,
    sent: Sent,
    theta: ModelVector,
    theirs: RingVector,
) -> Finished:
    """θ_{t+1} from θ_t, the own noisy share and the other server's, ``[d] int64`` each.

    The other server's becomes the noisy sum, and θ_t the next model where it is
    float32.
    """
    task = aggregator.task
    counted = sent.counted
    group = group_of(task)
    group.add(theirs, sent.noisy_share)
    noisy_sum = group.decode(theirs)
    out = theta if theta.dtype == np.float32 else None
    denominator = aggregator.roster.denominator(task.privacy.client_rate)
    stepped = apply_update(
        theta,
        noisy_sum,
        task,
        denominator,
        out,
    )
    digest = model_digest(
        task.digest, counted.opened.version + 1, task.model.parameters, stepped
    )
    return Finished(
        opened=counted.opened,
        valid=counted.valid,
        rejections=counted.rejections,
        noisy_sum=noisy_sum,
        theta=stepped,
        model=digest,
    )
