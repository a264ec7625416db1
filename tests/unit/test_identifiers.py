"""Names and digests are checked where they are made."""

from typing import Any

import pytest

from precad.common.errors import Misconfiguration
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


def test_a_digest_is_sha256_in_hex() -> None:
    assert str(Digest.of(b"")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_clients_sort_by_name() -> None:
    assert sorted([ClientId("b"), ClientId("a"), ClientId("a-1")]) == [
        ClientId("a"),
        ClientId("a-1"),
        ClientId("b"),
    ]
