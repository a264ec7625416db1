"""Of each authority the newest list counts: no new file brings back what an older one revoked."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.authority import Authority, new_key, revoked_entry, to_pem
from precad.common.identity.party_certificate import Principal
from precad.common.identity.revocation_list import RevocationList, newest_lists

NOW = datetime.now(UTC)


class Two:
    """Two authorities of one name in one ca.pem, as of two deployments that merge."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "crl.pem"
        self.roots = Authority.create(), Authority.create()
        self.certificates = [root.certificate for root in self.roots]
        self.issued = [
            root.issue(Principal.service(Role.SERVER_A), new_key().public_key())
            for root in self.roots
        ]

    def pem(
        self, of: int, number: int, *, revoking: bool = False, days: int = 0
    ) -> bytes:
        serial = self.issued[of].serial_number
        entries = [revoked_entry(serial)] if revoking else []
        now = NOW + timedelta(days=days)
        return to_pem(self.roots[of].revocation_list(entries, number=number, now=now))

    def put(self, *pems: bytes) -> None:
        """By a new file, so that it shows even within one tick of the clock."""
        new = self.path.with_name("crl.new")
        new.write_bytes(b"".join(pems))
        new.replace(self.path)

    def read(self) -> RevocationList:
        return RevocationList(self.path, self.certificates)

    def revoked(self, lists: RevocationList) -> list[bool]:
        return [lists.revokes(each) for each in self.issued]


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


@pytest.mark.parametrize(
    ("came", "said"),
    [
        # Newer than all that was read, without one authority's; or with an older one.
        (lambda two: [two.pem(1, 9, days=9)], "lacks the list"),
        (
            lambda two: [two.pem(1, 9, days=9), two.pem(0, 1, days=-1)],
            "has an older list",
        ),
        # Written anew by a clock that is ahead: the number decides.
        (lambda two: [two.pem(1, 9, days=9), two.pem(0, 1, days=8)], "older list"),
    ],
    ids=["lacks one", "ages one", "ages one by its number"],
)
def test_a_file_that_lacks_or_ages_one_authoritys_list_revives_none_of_its_certificates(
    two: Two, came: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    two.put(two.pem(0, 2, revoking=True), two.pem(1, 1, days=-5))
    lists = two.read()
    assert two.revoked(lists) == [True, False]
    two.put(*came(two))
    assert two.revoked(lists) == [True, False]
    assert said in caplog.text
    # What the same file says of the other authority counts, and so does a list that is
    # newer than the one in force but older than the other authority's.
    two.put(two.pem(0, 3, days=1), two.pem(1, 10, revoking=True, days=10))
    assert two.revoked(lists) == [False, True]


def test_a_file_cut_short_or_without_an_end_revives_nothing_and_ends_a_start(
    two: Two,
) -> None:
    """A copy that isn't over: whole is the first list alone."""
    whole = two.pem(1, 1) + two.pem(0, 2, revoking=True)
    two.put(whole)
    lists = two.read()
    two.put(whole[:-30])
    assert two.revoked(lists) == [True, False]
    with pytest.raises(Misconfiguration, match="without an end"):
        two.read()


def test_a_start_says_of_which_authority_there_is_no_list(
    two: Two, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "precad")
    two.put(two.pem(0, 1), two.pem(1, 1))
    two.read()
    assert caplog.text == ""
    two.put(two.pem(0, 1))
    two.read()
    assert f"{two.certificates[1].serial_number:x}" in caplog.text
    assert f"{two.certificates[0].serial_number:x}" not in caplog.text


def test_parts_of_one_authoritys_list_stand_beside_each_other(two: Two) -> None:
    """A company's authority that publishes by parts, and additions to a whole list."""
    other = new_key()

    def part(name: str, number: int, *serials: int) -> bytes:
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(two.certificates[0].subject)
            .last_update(NOW)
            .next_update(NOW + timedelta(days=1))
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        if name == "addition":
            builder = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)
        elif name:
            at = [x509.UniformResourceIdentifier(f"http://crl.example/{name}")]
            scope = x509.IssuingDistributionPoint(
                full_name=at,
                relative_name=None,
                only_contains_user_certs=False,
                only_contains_ca_certs=False,
                only_some_reasons=None,
                indirect_crl=False,
                only_contains_attribute_certs=False,
            )
            builder = builder.add_extension(scope, critical=True)
        for serial in serials:
            builder = builder.add_revoked_certificate(revoked_entry(serial))
        return to_pem(builder.sign(two.roots[0].key, hashes.SHA256()))

    issued = [
        two.roots[0].issue(Principal.client(name), other.public_key())
        for name in ("one", "two")
    ]
    one, second = (certificate.serial_number for certificate in issued)
    for first, then in (
        (part("east", 7, one), part("west", 3, second)),
        (part("", 7, one), part("addition", 8, second)),
    ):
        two.put(first, then)
        lists = two.read()
        assert [lists.revokes(each) for each in issued] == [True, True]
        two.put(first)
        assert [lists.revokes(each) for each in issued] == [True, True]


def test_two_files_lists_are_put_together_by_authority_and_not_by_name(
    two: Two,
) -> None:
    kept = two.pem(0, 2, revoking=True) + two.pem(1, 1)
    came = two.pem(1, 5, revoking=True) + two.pem(0, 1)
    two.put(newest_lists(two.certificates, kept, came))
    assert two.revoked(two.read()) == [True, True]
