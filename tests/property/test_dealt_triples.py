"""Both servers' parts of correlated randomness fit together, for every shape."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.common.deal.dealer import DealerRole
from precad.common.deal.program import program
from precad.common.deal.randomness import DealtRandomness
from precad.common.deal.request import DealRequest
from precad.common.identifiers import Digest, Role
from precad.common.ring import dot, signed
from precad.common.secret import Secret

TASK = Digest.of(b"task")
keys = st.binary(min_size=32, max_size=32).map(Secret)


@st.composite
def requests(draw: st.DrawFn) -> DealRequest:
    clients = draw(st.integers(1, 4))
    return DealRequest(
        task=TASK,
        attempt=draw(st.integers(0, 2**63 - 1)),
        batch=draw(st.integers(0, 2**31 - 1)),
        clients=clients,
        dimension=draw(st.integers(1, 300) | st.sampled_from([2**16 - 1, 2**16, 2**16 + 1])),
        comparisons=clients * draw(st.integers(1, 50)),
        nonces=draw(st.binary(min_size=64, max_size=64)),
    )


@settings(max_examples=60, deadline=None)
@given(request=requests(), key_a=keys, key_b=keys)
def test_r_is_the_square_of_a_and_c_is_a_and_b(
    request: DealRequest, key_a: Secret, key_b: Secret
) -> None:
    if key_a == key_b:
        return
    dealer = DealerRole(TASK, request.dimension, {Role.SERVER_A: key_a, Role.SERVER_B: key_b})
    of_a, of_b = (
        DealtRandomness(role, dealer.key_for(role), request, dealer.corrections(role, request))
        for role in (Role.SERVER_A, Role.SERVER_B)
    )
    for client in range(request.clients):
        (a_a, r_a), (a_b, r_b) = (p.inner_product_triple(client) for p in (of_a, of_b))
        assert a_a.shape == a_b.shape == (request.dimension,)
        a = a_a + a_b
        assert signed(r_a + r_b) == dot(a, a)
    shapes = []
    for one, other in zip(of_a.binary_triples(), of_b.binary_triples(), strict=True):
        shapes.append((one.a.shape, one.b.shape))
        assert other.a.shape == one.a.shape
        expected = (one.a ^ other.a) & (one.b ^ other.b)
        assert np.array_equal(one.c ^ other.c, expected)
    assert tuple(shapes) == program(request.clients, request.comparisons)
