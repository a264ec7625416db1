"""All notices have one size, whatever they say: on the wire nobody sees who was drawn."""

import pytest

from precad.common.aggregator.round.states import Opened
from precad.common.aggregator.service.notice import NOTICE_BYTES, notice_of
from precad.common.aggregator.training.feed import (
    Event,
    RoundDone,
    RoundOpened,
    TrainingDone,
    TrainingPaused,
)
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest

WARD, OTHER = ClientId("ward-1"), ClientId("ward-2")
MODEL = Digest(b"\7" * 32)


def events(attempt: int, version: int) -> list[Event]:
    drawn = Opened(attempt, version, (WARD, OTHER), MODEL, frozenset({WARD}))
    longest = max(Rejection, key=lambda reason: len(reason.value))
    return [
        RoundOpened(drawn, 60.0),
        RoundDone(drawn, frozenset({WARD}), {}, MODEL, 1, 0.5),
        RoundDone(drawn, frozenset(), {WARD: longest}, MODEL, 1, 0.5),
        TrainingDone(version, MODEL),
        TrainingPaused(),
    ]


@pytest.mark.parametrize("attempt", [0, 300, 2**62])
def test_every_notice_has_the_same_size_for_everybody(attempt: int) -> None:
    sizes = {
        len(notice_of(event, client).SerializeToString())
        for event in events(attempt, attempt)
        for client in (WARD, OTHER)
    }
    assert sizes == {NOTICE_BYTES}


def test_only_who_is_drawn_hears_so() -> None:
    opened = events(3, 2)[0]
    assert notice_of(opened, WARD).open.selected
    assert not notice_of(opened, OTHER).open.selected
