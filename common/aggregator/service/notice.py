"""What a client may learn: of an event just this, whatever happened to others.

Not who was drawn, not how many counted, not why a server stopped (docs/protocol.md, "What each
party sees"). All notices have one size: on the wire none differs from another.
"""

from precad.common.aggregator.training.feed import (
    Event,
    RoundDone,
    RoundOpened,
    TrainingDone,
    TrainingPaused,
)
from precad.common.identifiers import ClientId
from precad.protos import precad_pb2 as pb

NOTICE_BYTES = 512
_PADDING_HEADER = 3
"""Tag and length of 128 bytes or more."""


def notice_of(event: Event, client: ClientId) -> pb.Notice:
    """What ``client`` may know of ``event``; always of ``NOTICE_BYTES``."""
    notice = _notice(event, client)
    notice.padding = bytes(NOTICE_BYTES - notice.ByteSize() - _PADDING_HEADER)
    return notice


def _notice(event: Event, client: ClientId) -> pb.Notice:
    match event:
        case RoundOpened(opened=opened, collect_s=collect_s, cohort=cohort):
            return pb.Notice(
                open=pb.RoundOpen(
                    attempt=opened.attempt,
                    version=opened.version,
                    model_digest=opened.model.value,
                    selected=client in cohort,
                    collect_seconds=collect_s,
                )
            )
        case RoundDone():
            rejection = event.rejections.get(client)
            return pb.Notice(
                over=pb.RoundOver(
                    attempt=event.opened.attempt,
                    version=event.opened.version,
                    counted=client in event.valid,
                    rejection="" if rejection is None else rejection.value,
                )
            )
        case TrainingDone(version, model):
            return pb.Notice(finished=pb.TrainingOver(version=version, model_digest=model.value))
        case TrainingPaused():
            return pb.Notice(paused=pb.TrainingPaused())
