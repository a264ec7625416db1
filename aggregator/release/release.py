"""Noise, prepare, countersign, send: when a noisy share may leave, and that it never changes.

Each step is durable before the next one's words leave: *prepared* before the own head is signed,
*countersigned* (also in the file outside the database) before the countersignature leaves, *sent*
before the noisy share does. `release_model` (tests/model) is the same order, searched.
"""

from precad.aggregator.noise import NoiseSource
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.history import history_after
from precad.aggregator.rounds.journal import Journal
from precad.aggregator.rounds.messages import HeadBody, SealMessage
from precad.aggregator.rounds.states import Noised, Prepared, Sent, Summed
from precad.common.errors import PeerViolation
from precad.common.identity.seal import Kind
from precad.common.ring import byte_view


def add_noise(summed: Summed, noise: NoiseSource) -> Noised:
    """Add this server's own noise, once."""
    noisy = noise.draw(summed.share_sum.size)
    # In place: a large model has room for few vectors, and drawn noise is for one use.
    noisy += summed.share_sum
    return Noised(summed.counted, noisy)


def prepare(journal: Journal, noised: Noised) -> Prepared:
    """Charge the ledger and persist the noisy share, in one. Nothing leaves yet.

    Raises:
        AlreadyReleased: this attempt was prepared before.
    """
    counted, noisy = noised.counted, noised.noisy_share
    journal.prepare(
        counted.opened.attempt,
        counted.valid,
        counted.valid_set,
        counted.rejections,
        byte_view(noisy),
    )
    return Prepared(counted, noisy)


def countersign(aggregator: Aggregator, prepared: Prepared) -> Sent:
    """Sign the own head, countersign the other's; with both, the noisy share may leave.

    Raises:
        PeerViolation: the other server prepared something else, or its ledger holds other facts.
    """
    link, journal, seals = aggregator.link, aggregator.journal, aggregator.seals
    own = _head(aggregator, prepared)
    mine = seals.write(Kind.HEAD, own)
    theirs = SealMessage.from_bytes(link.exchange("head", mine.to_bytes()))
    head = seals.read(seals.other, Kind.HEAD, theirs, HeadBody)
    if _common(head) != _common(own):
        raise PeerViolation(
            f"the servers disagree on what they have prepared: here {_common(own)}, there "
            f"{_common(head)}; nothing more is released"
        )
    journal.countersign(own.attempt, head, theirs)
    signed = seals.write(Kind.COUNTERSIGNATURE, head)
    answer = SealMessage.from_bytes(link.exchange("countersignature", signed.to_bytes()))
    if seals.read(seals.other, Kind.COUNTERSIGNATURE, answer, HeadBody) != own:
        raise PeerViolation("the other server countersigned another head than this server's")
    journal.sent(own.attempt, answer)
    return Sent(prepared.counted, prepared.noisy_share)


def _head(aggregator: Aggregator, prepared: Prepared) -> HeadBody:
    journal, opened = aggregator.journal, prepared.counted.opened
    head, version = journal.head(), opened.version
    history = history_after(journal.history(version), journal.facts(version))
    return HeadBody(
        task=str(aggregator.task.digest),
        version=version,
        attempt=opened.attempt,
        valid_set=str(prepared.counted.valid_set),
        length=head.length,
        head=str(head.head),
        history=str(history),
    )


def _common(head: HeadBody) -> tuple[str, int, int, str, str]:
    return head.task, head.version, head.attempt, head.valid_set, head.history
