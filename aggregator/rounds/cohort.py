"""Select: who is drawn for a version, by its joint coin."""

from fractions import Fraction

from precad.common.enrolment import Roster
from precad.common.identifiers import ClientId
from precad.common.keystream import Keystream
from precad.common.secret import Secret


def cohort_of(
    coin: Secret, roster: Roster, client_rate: float, version: int
) -> tuple[ClientId, ...]:
    """Each enrolled client with probability q: PRF(coin; version, client) < q·2^64.

    No client's draw depends on who else is enrolled, or on their order.

    Args:
        coin: of this version, from both servers' bytes.
        roster: everybody enrolled.
        client_rate: q; exact to 2^−64.
        version: t.
    """
    threshold = int(Fraction(client_rate) * 2**64)

    def word(client: ClientId) -> int:
        return int.from_bytes(
            Keystream(coin, "cohort", version, client.encoded()).read(8), "little"
        )

    return tuple(client for client in roster if word(client) < threshold)
