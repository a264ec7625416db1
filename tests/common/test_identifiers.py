"""Names and digests are checked where they are made; errors are the same beyond their process."""

import copy
from typing import Any

import pytest

from precad.common.errors import Misconfiguration, MissingPackage, PrecadError, Rejection
from precad.common.errors import RejectedSubmission as Rejected
from precad.common.identifiers import ClientId, Digest


@pytest.mark.parametrize("name", ["a", "0", "ward-3", "a" * 63, "a--b"])
def test_good_client_names(name: str) -> None:
    assert ClientId(name).encoded() == name.encode()


@pytest.mark.parametrize(
    "name", ["", "A", "-a", "a-", "a_b", "a b", "a" * 64, "a\n", "ä", "../a", "a\0", None, 3, b"a"]
)
def test_bad_client_names_are_refused(name: Any) -> None:
    with pytest.raises(Misconfiguration) as refused:
        ClientId(name)
    assert refused.value.field == "client"
    assert refused.value.value == name


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_digest_has_32_bytes(length: int) -> None:
    with pytest.raises(Misconfiguration):
        Digest(bytes(length))


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        PrecadError("x" * 5000),
        Misconfiguration("--data", "nowhere", "name a folder"),
        MissingPackage("precad serve", "torch", "server"),
        Rejected(Rejection.ABSENT, "nothing came"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_beyond_its_process(error: PrecadError) -> None:
    # By the protocol that takes it to another process.
    there = copy.copy(error)
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert vars(there) == vars(error)
