"""A DNS name states exactly one party, or nothing."""

import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal

client_names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
principals = st.one_of(
    client_names.map(Principal.client),
    st.sampled_from([role for role in Role if role is not Role.CLIENT]).map(
        Principal.service
    ),
)
near_misses = st.text(
    string.ascii_letters + string.digits + ".-*_ \x00é", max_size=30
).map(lambda text: text + ".precad")
foreign_names = st.text(string.ascii_lowercase + ".-", max_size=30).map(
    lambda t: t + ".example"
)


@given(near_misses)
@example("SERVER-A.precad")
@example("a.ward-3.client.precad")
@example("*.precad")
@example("server-a.precad.precad")
@example(".client.precad")
@example("client.precad")
@example("ward_3.client.precad")
@example("ward-3.client.precad\n.precad")
def test_only_canonical_names_are_read(text: str) -> None:
    try:
        principal = Principal.from_dns_names([text])
    except Misconfiguration:
        return
    assert principal.dns_name == text


@given(principals, st.lists(foreign_names, max_size=3))
def test_every_party_is_read_back_among_other_names(
    principal: Principal, others: list[str]
) -> None:
    assert Principal.from_dns_names([*others, principal.dns_name]) == principal
    with pytest.raises(Misconfiguration):
        Principal.from_dns_names(others)


@given(principals, principals.map(lambda party: party.dns_name) | near_misses)
@example(Principal.service(Role.SERVER_A), "server-a.precad")
@example(Principal.service(Role.SERVER_A), "SERVER-B.PRECAD")
@example(Principal.service(Role.SERVER_A), "server-b.precad.")
def test_a_second_name_of_ours_is_refused_even_an_equal_one(
    principal: Principal, other: str
) -> None:
    assume("\x00" not in other)
    with pytest.raises(Misconfiguration):
        Principal.from_dns_names([principal.dns_name, other])
