"""Who a party is: role and name, and the one form in which a certificate states them.

| party | DNS name in the certificate |
| --- | --- |
| a server, the dealer, the operator | ``server-a.precad``, ``server-b.precad``, … |
| a client | ``<name>.client.precad`` |
"""

from collections.abc import Iterable
from dataclasses import dataclass

from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId, Role

DOMAIN = "precad"
SERVING_ROLES = frozenset({Role.SERVER_A, Role.SERVER_B, Role.DEALER})
_SINGULAR_ROLES = {f"{role.value}.{DOMAIN}": role for role in Role if role is not Role.CLIENT}
_CLIENT_SUFFIX = f".{Role.CLIENT.value}.{DOMAIN}"
_REMEDY = (
    "give exactly one of server-a.precad, server-b.precad, dealer.precad, operator.precad "
    "or <name>.client.precad"
)


@dataclass(frozen=True, slots=True)
class Principal:
    """A party. Of every role but client there is one, named like its role."""

    role: Role
    name: str

    def __post_init__(self) -> None:
        if self.role is Role.CLIENT:
            ClientId(self.name)
        elif self.name != self.role.value:
            raise Misconfiguration("name", self.name, f"the {self.role.value} is named like that")

    @classmethod
    def client(cls, name: str) -> "Principal":
        """The client of that name. Raises Misconfiguration where it is no client's name."""
        return cls(Role.CLIENT, name)

    @classmethod
    def service(cls, role: Role) -> "Principal":
        """The one party of a role; Misconfiguration for clients, who have names of their own."""
        return cls(role, role.value)

    @classmethod
    def from_dns_names(cls, dns_names: Iterable[str]) -> "Principal":
        """The one party among a certificate's DNS names; names outside our domain don't count.

        Raises:
            Misconfiguration: no name in our domain, several, or one that isn't exactly, in lower
                case, of one of the two forms.
        """
        # Looser than the two forms, so that a near miss is refused and never ignored.
        ours = [name for name in dns_names if name.casefold().rstrip(".").split(".")[-1] == DOMAIN]
        if len(ours) != 1:
            raise Misconfiguration("DNS names in .precad", ours, _REMEDY)
        if role := _SINGULAR_ROLES.get(ours[0]):
            return cls.service(role)
        if ours[0].endswith(_CLIENT_SUFFIX):
            return cls.client(ours[0].removesuffix(_CLIENT_SUFFIX))
        raise Misconfiguration("DNS name", ours[0], _REMEDY)

    @property
    def dns_name(self) -> str:
        """The name that the certificate carries."""
        if self.role is Role.CLIENT:
            return f"{self.name}{_CLIENT_SUFFIX}"
        return f"{self.name}.{DOMAIN}"

    def __str__(self) -> str:
        return self.dns_name


def check_serving(role: Role) -> None:
    """Only some roles have a port. Raises Misconfiguration for any other."""
    if role not in SERVING_ROLES:
        raise Misconfiguration("role", role.value, "only server-a, server-b and the dealer serve")
