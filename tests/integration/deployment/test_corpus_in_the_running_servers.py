"""The corpus by the servers as they run, and callers of another wire version at every part.

docs/soundness.md, "What must be rejected, and what accepted".
"""

import math
from typing import Any

import grpc
import numpy as np
import pytest
from tests.integration.deployment.conftest import Running
from tests.rig.corpus import honest, multiple, too_long, unit, wrapping

from precad.common.errors import Rejection
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import USER_AGENT, WIRE_VERSION, dialling
from precad.common.proof_shape import P
from precad.common.ring import RingVector, squared_norm

COUNTED = "counted"
DEADLINE_S = 60.0
NORM_EXCEEDED = Rejection.NORM_EXCEEDED.value
Case = tuple[RingVector, str]


def of_norm(dimension: int, length: int) -> RingVector:
    """Four coordinates of length/2: X·X is length² exactly, for even lengths."""
    x = np.zeros(dimension, dtype=np.int64)
    x[[0, 7, 100, -1]] = length // 2
    x[7] *= -1
    assert squared_norm(x) == length * length
    return x


def play_cases(running: Running, cases: list[Case], rest: RingVector) -> list[str]:
    """Submit each vector once, one a client and round; how each ended."""
    ended: list[str] = []
    size = len(running.clients)
    for start in range(0, len(cases), size):
        part = cases[start : start + size]
        played = running.play(dict(enumerate(x for x, _ in part)), rest)
        outcomes = list(played.outcome.values())
        ended += outcomes[: len(part)]
        # Honest clients beside them always count.
        assert outcomes[len(part) :] == [COUNTED] * (size - len(part))
    return ended


def test_every_forged_vector_is_rejected_with_its_reason_and_honest_ones_count(
    by_either_check: Running, rng: np.random.Generator
) -> None:
    running = by_either_check
    d, beta = running.task.dimension, running.task.bound
    rejected = [
        *wrapping(d),
        *too_long(d, beta),
        # 2^48 is a root of −1 modulo p, so this has a squared norm of 0 there; p/2 and p/3 wrap.
        unit(d, 2**48) + unit(d, 1, at=1),
        unit(d, P // 2),
        unit(d, P // 2) + unit(d, -(P // 2), at=5),
        unit(d, P // 3) + unit(d, -(P // 3), at=5),
        unit(d, 16 * beta),
        np.full(d, 69 * beta // math.isqrt(d), dtype=np.int64),
        # All 64: tests/integration/validation.
        *(multiple(d, i, rng) for i in (0, 1, 7, 8, 15, 16, 31, 32, 33, 48, 62, 63)),
    ]
    accepted = [
        *(unit(d, value) for value in (0, 1, -1, beta)),
        unit(d, -beta, at=d - 1),
        of_norm(d, beta),
        -of_norm(d, beta),
        *(honest(running.task, rng) for _ in range(15)),
    ]
    cases = [(x, NORM_EXCEEDED) for x in rejected]
    cases += [(x, COUNTED) for x in accepted]
    order = rng.permutation(len(cases))
    shuffled = [cases[i] for i in order]
    ended = play_cases(running, shuffled, of_norm(d, beta))
    wrong = [
        (int(order[i]), expected, got)
        for i, ((_, expected), got) in enumerate(zip(shuffled, ended, strict=True))
        if expected != got
    ]
    assert not wrong


@pytest.mark.parametrize("said", [1, WIRE_VERSION + 1])
@pytest.mark.parametrize(
    ("place", "caller", "method"),
    [
        (Role.SERVER_A, "ward-00", "Aggregation/Describe"),
        (Role.SERVER_B, "ward-00", "Aggregation/Describe"),
        (Role.DEALER, "server-a", "Dealing/Join"),
    ],
)
def test_every_part_refuses_another_wire_version_of_whoever_may_call(
    running: Running, place: Role, caller: str, method: str, said: int
) -> None:
    deployment, (key, _) = running.deployment, USER_AGENT
    identity = Identity.load(deployment.folder / "keys" / caller)
    address = deployment.addresses[place.value]
    target, credentials, options = dialling(address, identity, place)
    # The first version said nothing.
    agent = (key, "precad" if said == 1 else f"precad-wire/{said}")
    options = [agent, *(each for each in options if each[0] != key)]
    with grpc.secure_channel(target, credentials, options) as channel:
        call: Any = channel.unary_unary(f"/precad.v1.{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=DEADLINE_S)
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"the caller speaks wire version {said}, " in error.details()
    assert f" {WIRE_VERSION}: upgrade precad at " in error.details()
    assert ("at the caller" in error.details()) == (said < WIRE_VERSION)
