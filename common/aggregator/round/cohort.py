"""Select: who is drawn for an attempt."""

from precad.common.enrolment import Roster
from precad.common.identifiers import ClientId
from precad.common.keystream import Keystream
from precad.common.secret import Secret

_RESOLUTION = 2**64


def select_cohort(roster: Roster, client_rate: float) -> tuple[ClientId, ...]:
    """Each enrolled client independently with probability q, from the CSPRNG.

    Uniform 64-bit words are compared with q·2^64: the rate is exact to 2^−53 of itself.
    """
    stream = Keystream(Secret.random(), "cohort")
    words = stream.words(len(roster)).astype("u8").tolist()
    threshold = int(client_rate * _RESOLUTION)
    return tuple(client for client, word in zip(roster, words, strict=True) if word < threshold)
