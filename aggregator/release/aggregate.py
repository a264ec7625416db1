"""Validate and aggregate: from matched submissions to the sum of the valid ones."""

from collections.abc import Sequence

from precad.aggregator.release.agree import agree
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.states import Counted, Matched, Summed
from precad.aggregator.validate.in_process import InProcess
from precad.aggregator.validate.validator import MAX_BATCH_CLIENTS, Validator
from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import derive, encode_context


def aggregate(
    aggregator: Aggregator, matched: Matched, validator: Validator | None = None
) -> Summed:
    """Both parts of docs/soundness.md for every matched submission, then the sum of the valid ones.

    Args:
        aggregator: this server.
        matched: the submissions.
        validator: has taken those that were matched early; all are validated here without one.

    Raises:
        PeerViolation: the servers disagree about the valid set, or one departs from the protocol.
        PeerUnavailable: the other server, the dealer or a worker is gone; or a body that has to be
            taken out of the sum can't be read again.
    """
    opened = matched.opened
    if validator is None:
        with InProcess(aggregator, opened.attempt, opened.counted) as in_process:
            return aggregate(aggregator, matched, in_process)
    late = [s for client, s in matched.submissions.items() if client not in matched.early]
    for start in range(0, len(late), MAX_BATCH_CLIENTS):
        validator.take(late[start : start + MAX_BATCH_CLIENTS])
    verdicts = validator.decide()
    valid = (client for client in matched.submissions if client not in verdicts.rejections)
    counted = tuple(client for client in valid if client in opened.counted)
    digest = _set_digest(aggregator, matched, counted)
    agree(aggregator.link, "valid-set", digest, len(counted))
    for submission in matched.submissions.values():
        submission.discard()
    rejections = {**matched.rejections, **verdicts.rejections}
    return Summed(Counted(opened, counted, digest, rejections), verdicts.share_sum)


def _set_digest(aggregator: Aggregator, matched: Matched, valid: Sequence[ClientId]) -> Digest:
    """Salted with what only the two servers know: else the digest were the list itself."""
    task, attempt = aggregator.task.digest.value, matched.opened.attempt
    salt = derive(aggregator.set_secret, "set-salt", task, attempt).reveal()
    parts: list[bytes | int] = [salt, task, attempt]
    for client in valid:
        parts += [client.encoded(), matched.submissions[client].header.whole_digest.value]
    return Digest.of(encode_context("valid-set", *parts))
