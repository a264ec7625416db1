"""Bytes that once came through a parser as something else than our own error; all found
by fuzzing.

Each case is as small as it could be made; the targets are those of tests/fuzz.
"""

import base64
import io
import itertools
import json
import logging
import zipfile
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import cast

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from numpy.typing import NDArray
from tests.fuzz.stage import join, split, stage
from tests.fuzz.targets import TARGETS
from tests.rig.documents import Document
from tests.rig.keys import identity

from precad.common import errors, process
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.identity.party_certificate import Principal
from precad.common.wire.calls import OperatorConnection, error_of
from precad.protos import precad_pb2 as pb

Change = tuple[bytes, bytes]


def change(old: str, new: str) -> Change:
    return bytes.fromhex(old), bytes.fromhex(new)


VERSION = change("a003020102", "a003020122")
KEY_TYPE = change("2a8648ce3d0201", "2a8648ce3d0209")
CURVE = change("2a8648ce3d030107", "2a8644ce3d030107")
IS_CA = change("30060101ff", "30060501ff")
LIST_VERSION = change("020101300a", "020171300a")
COMMON_NAME = change("0603550403", "060355042d")
"""Its type becomes one whose value can't be a string."""


def refused(target: str, data: bytes) -> errors.PrecadError:
    with pytest.raises(errors.PrecadError) as caught:
        TARGETS[target].parse(data)
    assert len(str(caught.value)) <= errors.MAX_TEXT
    return caught.value


def seed(target: str, number: int = 0) -> bytes:
    return TARGETS[target].seeds()[number]


def npy(array: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def packed(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


ONES = npy(np.ones(3))
RECORDS = packed(x=ONES, y=ONES)
OPEN = ONES.replace(b"}", b"(", 1)
TWO_KINDS_OF_KEYS = ONES.replace(b"'shape'", b"b'hape'")


@pytest.mark.parametrize(
    ("target", "of", "damage"),
    [
        *(("certificate", "certificate", each) for each in (VERSION, KEY_TYPE, CURVE)),
        ("certificate", "identity-ca", IS_CA),
        *(
            ("identity-ca", "identity-ca", each)
            for each in (VERSION, KEY_TYPE, CURVE, IS_CA)
        ),
        ("identity-key", "identity-key", KEY_TYPE),
        ("identity-crl", "revocations", LIST_VERSION),
        *(("revocations", "revocations", each) for each in (LIST_VERSION, COMMON_NAME)),
        ("signing-request", "signing-request", CURVE),
    ],
)
def test_a_damaged_certificate_list_or_key(
    target: str, of: str, damage: Change
) -> None:
    first, *body, last = seed(of).decode().strip().splitlines()
    der = base64.b64decode("".join(body))
    assert damage[0] in der
    text = base64.encodebytes(der.replace(*damage, 1)).decode()
    refused(target, f"{first}\n{text}{last}\n".encode())


def test_a_submission_signed_with_a_damaged_certificate() -> None:
    value, good, *_ = split(seed("signature"))
    for old, new in (VERSION, KEY_TYPE, CURVE):
        assert old in good
        refused("signature", join(value, good.replace(old, new, 1)))


LIMITS = {
    "too deep": b"x = " + b"[" * 10_000,
    "many digits": b"x = " + b"9" * 5000,
    "many hexadecimal digits": b"x = 0x" + b"f" * 5000,
}
"""What ends in Python's own limits."""
REFUSED: dict[str, Mapping[str, bytes | Document]] = {
    "client-data": {
        "empty": b"",
        "an array alone": ONES,
        "an open bracket": ONES[:-1].replace(b"}", b"(", 1),
        "no y": packed(x=ONES),
        "an open bracket inside": packed(x=OPEN, y=ONES),
        "words": packed(x=npy(np.array(["a", "b"])), y=npy(np.arange(2))),
        "too long": packed(x=ONES.replace(b"(3,)", b"(9999999999999,)"), y=ONES),
        "an unknown compression": RECORDS.replace(b"\x08\x00", b"\x63\x00"),
        "encrypted": RECORDS.replace(b"\x14\x00\x00\x00", b"\x14\x00\x01\x00"),
        "of a later version": RECORDS.replace(b"\x14\x00", b"\x94\x00"),
        "a damaged deflate stream": RECORDS[:40] + b"\xff" * 20 + RECORDS[60:],
        "a header with keys of two kinds": packed(
            x=TWO_KINDS_OF_KEYS, y=TWO_KINDS_OF_KEYS
        ),
    },
    "run-arrays": {"a header with keys of two kinds": TWO_KINDS_OF_KEYS},
    # By what the inputs of its certificate say; infinity is what Python's JSON reads
    # 1e999 as.
    "run-summary": {
        "too deep": b"[" * 100_000,
        "infinite": {"rounds": float("inf")},
        "no number": {"rounds": float("nan")},
        "a word": {"rounds": "many"},
        "many rounds": {"rounds": 10**400},
        "much noise": {"noise_multiplier": 10**400},
        "a list": {"noise_multiplier": [1]},
        "a long word": {"delta": "x" * 100_000},
        "a quotient beyond floats": {
            "client_clip": 1e-320,
            "effective_record_clip": 1e300,
        },
    },
    "task-toml": LIMITS,
    "roster": LIMITS,
    "settings": {
        "a zero in a path": b'\2task = "a\\u0000b"\nlisten = "a:1"\n',
        **{name: b"\2" + text for name, text in LIMITS.items()},
    },
    "task-canonical": {
        "too deep": b"{" + b'"a":[' * 10_000,
        "many digits": b'{"name": ' + b"9" * 5000 + b"}",
    },
}


@pytest.mark.parametrize(
    ("target", "name"),
    [(target, name) for target, some in REFUSED.items() for name in some],
)
def test_files_that_nobody_wrote(target: str, name: str) -> None:
    data = REFUSED[target][name]
    if isinstance(data, dict):
        summary = json.loads(seed(target))
        summary["certificate_inputs"].update(data)
        data = json.dumps(summary).encode()
    refused(target, data)


NO_NUMBERS = (np.array(["a", "b"]), np.zeros((0, 2)), np.zeros((2, 0)), np.array([1j]))


@pytest.mark.parametrize(
    ("numbers", "data"),
    [
        *((range(5), npy(array)) for array in NO_NUMBERS),
        (range(5), packed(x=ONES)),
        (range(5), OPEN),
        # Labels that would fill the memory, and counts beyond all votes.
        *(
            ([1], npy(np.array([[0, 1], [label, 0]])))
            for label in (2**40, 2**62, 2**63 - 1)
        ),
        ([0], npy(np.array([[2**64 - 1, 0]], dtype=np.uint64))),
        ([0], npy(np.array([[2**62, 2**62], [2**62, 2**62]]))),
        ([0], npy(np.array([[1e300, 0.0]]))),
    ],
)
def test_arrays_that_are_no_votes_labels_or_scores(
    numbers: Iterable[int], data: bytes
) -> None:
    for number in numbers:
        refused("certify-npy", bytes([number]) + data)


def test_many_votes_take_no_table_of_every_count() -> None:
    """It once computed a bound for each of 0, 1, … fifteen million votes: minutes, and
    900 MB."""
    TARGETS["certify-npy"].check(b"\0" + npy(np.array([[2**31 - 300, 256]])))


def test_a_spooled_body_with_one_other_bit_and_a_kept_pair_with_other_lengths() -> None:
    for place in range(len(seed("spooled-body"))):
        refused("spooled-body", bytes(place) + b"\1")
    whole = seed("pending")
    head = whole.index(b"\0") + 1
    # Wherever a length stands, one beyond the file: of the update, and of each header.
    for at, length in itertools.product(
        range(head, len(whole) - 8), (2**64 - 1, 2**63, 2**40)
    ):
        TARGETS["pending"].check(
            whole[:at] + length.to_bytes(8, "little") + whole[at + 8 :]
        )


def test_a_receipt_or_a_notice_with_a_word_that_is_no_rejection() -> None:
    pieces = split(seed("client", 1))
    pieces[4] = pb.Receipt(rejection="absen#").SerializeToString()
    assert "absen#" in str(refused("client", join(*pieces)))
    over = pb.Notice(
        over=pb.RoundOver(attempt=1, rejection="x" * 5000), serves_first="server-a"
    )
    refused("client", join(*split(seed("client", 0)), over.SerializeToString()))
    # Nor an announced deadline that is no number of seconds.
    for seconds in (float("nan"), float("inf"), -1.0, 1e300):
        *before, last = split(seed("client", 1))
        notice = pb.Notice.FromString(last)
        notice.open.collect_seconds = seconds
        TARGETS["client"].check(join(*before, notice.SerializeToString()))


def test_correction_words_of_another_length() -> None:
    whole = split(seed("deal-words"))
    for words in (
        b"",
        bytes(7),
        bytes(8),
        pb.DealPiece.FromString(whole[1]).words + bytes(8),
    ):
        refused(
            "deal-words", join(whole[0], pb.DealPiece(words=words).SerializeToString())
        )


@pytest.mark.parametrize("number", [2**40 + 1, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", ["version", "next_attempt"])
def test_numbers_of_the_other_server_that_no_database_holds(
    field: str, number: int
) -> None:
    position = pb.Position.FromString(seed("peer-messages")[1:])
    setattr(position, field, number)
    assert field in str(refused("peer-messages", b"\0" + position.SerializeToString()))


def invalid(target: str, message: Message) -> str:
    with pytest.raises(Exception, match="INVALID_ARGUMENT") as caught:
        TARGETS[target].parse(message.SerializeToString())
    return str(caught.value)


def test_a_batch_that_no_round_of_the_task_has_and_a_name_of_a_megabyte() -> None:
    for field, value in (("clients", 11), ("comparisons", 2**28), ("clients", 0)):
        request = pb.DealRequest.FromString(seed("deal-request"))
        setattr(request, field, value)
        invalid("deal", request)
    digest = stage().task.digest.value
    name = pb.EnrolRequest(client="\0" * (1 << 20), task_digest=digest)
    assert len(invalid("enrol", name)) < errors.MAX_TEXT


@pytest.mark.parametrize(
    "value",
    [
        10**5000,
        "x" * 10_000,
        "\0" * 10_000,
        b"\xff" * 10_000,
        [[1] * 1000] * 1000,
        {"a": 10**5000},
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_shows_a_bounded_part_of_a_value(value: object) -> None:
    text = str(errors.Misconfiguration("field", value, "mend it"))
    assert len(text) < 300
    assert text.endswith("mend it")


FORGED = (
    "no\x1b[2K\rfinished: \u03b5 = .001\x9b\u202e\u2066\n2026-11-26 INFO"
    " finished\u2028\x85\v"
)


@pytest.mark.parametrize("code", grpc.StatusCode)
def test_a_peers_words_bring_no_control_character(code: grpc.StatusCode) -> None:
    """A server could write whole lines into an owner's terminal and log."""
    refusal = SimpleNamespace(code=lambda: code, details=lambda: FORGED)
    assert str(
        error_of("server A", "here:1", cast("grpc.RpcError", refusal))
    ).isprintable()


def test_nor_do_they_in_any_error_log_or_status() -> None:
    assert str(errors.PrecadError(FORGED)).isprintable()
    assert errors.RejectedSubmission(
        errors.Rejection.MALFORMED, FORGED
    ).detail.isprintable()
    reply = pb.StatusReply(task_name=FORGED, error=FORGED, missing=[FORGED])
    reply.wire_version = WIRE_VERSION
    operator = OperatorConnection(
        "h:1", Role.SERVER_A, identity(Principal.service(Role.OPERATOR))
    )
    operator._operation.Status = lambda *_, **__: reply  # type: ignore[assignment]
    found = operator.status()
    operator.close()
    assert (found.task_name + found.error + found.missing[0]).isprintable()
    line = io.StringIO()
    log = logging.getLogger("precad.forged")
    log.addHandler(handler := logging.StreamHandler(line))
    handler.setFormatter(process.Lines("%(message)s"))
    log.error("server A says %s", FORGED)
    assert line.getvalue().removesuffix("\n").isprintable()
