"""Both servers' parts of correlated randomness fit together, for every shape."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.common.identifiers import ATTEMPTS, Digest, Role, Secret
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealRequest, DealtRandomness, program

TASK = Digest.of(b"task")
keys = st.binary(min_size=32, max_size=32).map(Secret)


_COMPARISONS = 7
"""ANDs before the first conjunction."""


@st.composite
def requests(draw: st.DrawFn) -> DealRequest:
    clients = draw(st.integers(1, 4))
    return DealRequest(
        task=TASK,
        attempt=draw(st.integers(0, ATTEMPTS - 1)),
        batch=draw(st.integers(0, 2**31 - 1)),
        clients=clients,
        comparisons=clients * draw(st.integers(1, 50)),
        nonces=draw(st.binary(min_size=64, max_size=64)),
    )


@settings(max_examples=25)
@given(request=requests(), key_a=keys, key_b=keys)
def test_c_is_a_and_b(request: DealRequest, key_a: Secret, key_b: Secret) -> None:
    if key_a == key_b:
        return
    dealer = DealerRole(TASK, 1, {Role.SERVER_A: key_a, Role.SERVER_B: key_b})
    of_a, of_b = (
        DealtRandomness(role, dealer.key_for(role), request, dealer.corrections(role, request))
        for role in (Role.SERVER_A, Role.SERVER_B)
    )
    shapes = []
    for one, other in zip(of_a.binary_triples(), of_b.binary_triples(), strict=True):
        shapes.append(one.a.shape)
        assert one.b.shape == other.a.shape == one.a.shape
        expected = (one.a ^ other.a) & (one.b ^ other.b)
        assert np.array_equal(one.c ^ other.c, expected)
    assert tuple(shapes) == program(request.clients, request.comparisons)


@given(clients=st.integers(1, 5), width=st.integers(1, 600))
def test_a_conjunctions_tree_leaves_one_value_a_client(clients: int, width: int) -> None:
    values, levels = width, 0
    for trees, pairs in program(clients, clients * width)[_COMPARISONS:]:
        assert trees == clients
        assert pairs == values // 2
        values = pairs + values % 2
        levels += 1
    assert values == 1
    assert levels == (width - 1).bit_length()


def test_the_tree_of_a_tasks_81_signs_takes_seven_exchanges_and_80_words_a_client() -> None:
    shapes = program(10, 810)
    assert shapes[:_COMPARISONS] == ((810,), *[(2, 810)] * 6)
    assert shapes[_COMPARISONS:] == tuple((10, pairs) for pairs in (40, 20, 10, 5, 3, 1, 1))
