"""All notices have one size, whatever they say: on the wire nobody sees who was drawn."""

from typing import Any

import pytest
from tests.rig.keys import identity

from precad.aggregator.rounds.states import Opened
from precad.aggregator.rpc.notices import NOTICE_BYTES, notice_of, word_room
from precad.aggregator.training.session import (
    Event,
    RoundDone,
    RoundOpened,
    TrainingDone,
    TrainingPaused,
)
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.wire.messages import read_notice, sign_body
from precad.protos import precad_pb2 as pb

WARD, OTHER = ClientId("ward-1"), ClientId("ward-2")
MODEL = Digest(b"\7" * 32)


A = identity(Principal.service(Role.SERVER_A))


def words(attempt: int) -> list[pb.Signed]:
    """The longest that a server signs for an owner."""
    names: dict[str, Any] = {
        "task_digest": bytes(32),
        "client": "w" * 63,
        "model_digest": bytes(32),
    }
    opening = pb.OpeningBody(
        **names, version=attempt, attempt=attempt, charges=attempt, opened=attempt
    )
    statement = pb.StatementBody(
        **names, version=attempt, attempt=attempt, charged=[attempt] * 8, counted=True
    )
    signer = CertificateSigner(A)
    return [sign_body(signer, Role.SERVER_A, body) for body in (opening, statement)]


def events(attempt: int, version: int) -> list[Event]:
    drawn = Opened(attempt, version, (WARD, OTHER), MODEL, frozenset({WARD}))
    longest = max(Rejection, key=lambda reason: len(reason.value))
    return [
        RoundOpened(drawn, 60.0),
        RoundDone(drawn, frozenset({WARD}), {}, MODEL, 1),
        RoundDone(drawn, frozenset(), {WARD: longest}, MODEL, 1),
        TrainingDone(version, MODEL),
        TrainingPaused(),
    ]


@pytest.mark.parametrize("attempt", [0, 300, 2**62])
@pytest.mark.parametrize("room", [0, 2048, 6 * 2048])
def test_every_notice_has_the_same_size_for_everybody(attempt: int, room: int) -> None:
    sizes = {
        len(notice_of(event, client, word, room).SerializeToString())
        for event in events(attempt, attempt)
        for client in (WARD, OTHER)
        for word in (None, *words(attempt))
    }
    assert sizes == {NOTICE_BYTES + room}


def test_a_servers_word_has_room_whatever_it_says() -> None:
    room = word_room(A.cert)
    for attempt in (0, 2**62):
        for word in words(attempt):
            assert notice_of(TrainingPaused(), WARD, word, room).word == word


def test_a_word_that_is_too_long_for_its_room_is_left_for_whoever_asks() -> None:
    (word, *_) = words(0)
    assert not notice_of(TrainingPaused(), WARD, word, word.ByteSize() - 1).HasField("word")


def test_only_who_is_drawn_hears_so() -> None:
    opened = events(3, 2)[0]
    assert notice_of(opened, WARD).open.selected
    assert not notice_of(opened, OTHER).open.selected


def test_an_event_that_this_version_does_not_know_is_a_violation() -> None:
    """Both sides speak one wire version: who skipped it would wait for what never comes."""
    notice = pb.Notice.FromString(pb.Notice(padding=b"x").SerializeToString() + b"\xfa\x06\x01x")
    with pytest.raises(PeerViolation, match="a notice without an event"):
        read_notice(notice)
