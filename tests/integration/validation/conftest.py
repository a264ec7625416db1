"""Two real CrypTen parties in two threads, over a link in memory."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from tests.rig.spent import MemorySpentTriples

from precad.common.aggregator.round.states import Shared, Validated
from precad.common.aggregator.validate import deal_request, validate
from precad.common.deal.dealer import DealerRole
from precad.common.deal.randomness import DealtRandomness
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import Keystream
from precad.common.link import PeerLink, memory_pair
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task

T = TypeVar("T")
Play = Callable[[Role, PeerLink], T]
Validate = Callable[..., tuple[Rejection | None, ...]]
SERVERS = (Role.SERVER_A, Role.SERVER_B)
TASK = Digest.of(b"test")


def play_both(play: Play[T], *, task: Digest = TASK, timeout_s: float = 20.0) -> tuple[T, T]:
    """What ``play`` returns at A and at B. The more telling of two errors is raised."""
    ends = memory_pair()
    links = [PeerLink(end, task, max_message_bytes=1 << 26, timeout_s=timeout_s) for end in ends]
    with ThreadPoolExecutor(max_workers=2) as threads:
        futures = [
            threads.submit(play, role, link) for role, link in zip(SERVERS, links, strict=True)
        ]
        errors = [future.exception() for future in futures]
    for error in sorted(filter(None, errors), key=lambda e: isinstance(e, PeerUnavailable)):
        raise error
    return futures[0].result(), futures[1].result()


def shared(x: RingVector, number: int) -> tuple[Shared, Shared]:
    """A submission split in two; shares, commitments and client are a function of ``number``."""
    stream = Keystream(Secret(bytes(32)), "test/share", number)
    commitments = stream.read(32), stream.read(32)
    share_a = stream.words(x.size)
    client = ClientId(f"client-{number}")
    return (
        Shared(client, *commitments, share=share_a),
        Shared(client, *commitments, share=x - share_a),
    )


def reasons(verdicts: Sequence[Validated | Rejection]) -> tuple[Rejection | None, ...]:
    """Why each update isn't valid; None for a valid one."""
    return tuple(None if isinstance(v, Validated) else v for v in verdicts)


def validate_both(
    task: Task,
    vectors: Sequence[RingVector],
    *,
    round_number: int = 0,
    first: int = 0,
    row_secret: bytes = bytes(32),
) -> tuple[Rejection | None, ...]:
    """Both servers' verdicts on ``vectors``, which must be the same."""
    dealer = DealerRole(task.digest, task.dimension)
    request = deal_request(task, round_number, 0, len(vectors), bytes(64))
    halves = [shared(x, first + i) for i, x in enumerate(vectors)]

    def play(role: Role, link: PeerLink) -> tuple[Rejection | None, ...]:
        link.begin_attempt(round_number)
        verdicts = validate(
            [half[SERVERS.index(role)] for half in halves],
            task=task,
            attempt=round_number,
            role=role,
            link=link,
            row_secret=Secret(row_secret),
            randomness=DealtRandomness(
                role, dealer.key_for(role), request, dealer.corrections(role, request)
            ),
            spent=MemorySpentTriples(),
        )
        return reasons(verdicts)

    at_a, at_b = play_both(play, task=task.digest)
    assert at_a == at_b
    return at_a


def task_of(dimension: int, *, client_clip: float = 30.0, fractional_bits: int = 16) -> Task:
    """A task with β = floor(client_clip·2^fractional_bits)."""
    return Task.parse(
        {
            "name": "test",
            "model": {"parameters": [{"name": "w", "shape": [dimension]}]},
            "privacy": {
                "record_clip": 1.0,
                "client_clip": client_clip,
                "noise_multiplier": 2.0,
                "record_rate": 0.2,
                "client_rate": 1.0,
            },
            "training": {"learning_rate": 1.0, "rounds": 3},
            "enrolment": {"clients": 10, "max_expected_records": 1000.0},
            "fractional_bits": fractional_bits,
        }
    )


@pytest.fixture(name="play_both")
def play_both_fixture() -> Callable[..., tuple[object, object]]:
    return play_both


@pytest.fixture(name="validate_both")
def validate_both_fixture() -> Validate:
    return validate_both


@pytest.fixture(name="shared")
def shared_fixture() -> Callable[[RingVector, int], tuple[Shared, Shared]]:
    return shared


@pytest.fixture(name="task_of")
def task_of_fixture() -> Callable[..., Task]:
    return task_of


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded randomness for test inputs; never for shares or masks."""
    return np.random.default_rng(20240229)
