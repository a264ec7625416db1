"""The streams that the dealer and a server expand alike from the server's key.

Server A's parts are all pseudo-random: a, r and (a, b, c). Of server B's, a and (a, b) are, and r
and c are corrected by what the dealer computes: r_B = a·a − r_A, c_B = (a & b) ⊕ c_A.
"""

from precad.common.deal.request import DealRequest
from precad.common.keystream import Keystream
from precad.common.secret import Secret


def inner_product_stream(key: Secret, request: DealRequest, client: int) -> Keystream:
    """Words of a (d of them), then (server A) one word of r."""
    return Keystream(key, "deal/inner-product", *request.context, client)


def binary_stream(key: Secret, request: DealRequest, number: int) -> Keystream:
    """The words of a, of b, then (server A) of c."""
    return Keystream(key, "deal/binary-triple", *request.context, number)
