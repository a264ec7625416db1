"""What arithmetic says that a round's links carry, without headers, seeds and framing.

Two forms: words as they are, 8 bytes a noisy share's and 4 a model's; and cut ones,
shares of as many bits as the sum has, and the released sum as a step in place of a
model. What a link carries beyond the form that the servers use is their messages'.
"""

import math
from statistics import NormalDist

import numpy as np

from benchmarks.rounds.vectors import vectors
from precad.aggregator.validate.check_by_proof import words_bytes
from precad.aggregator.validate.validation import comparisons_per_client
from precad.common.identifiers import ClientId
from precad.common.ring import WORD_BYTES
from precad.common.roster import Enrolment
from precad.common.task import Task

FLOAT_BYTES = 4
_WORDS_PER_COMPARISON = 28
"""Of both servers' openings, each way: 26 of CrypTen's carry tree, 2 of the last AND."""

Bytes = dict[str, int]
"""Of a round, by link."""


def share_bits(task: Task, clients: int) -> int:
    """B: bits that tell apart all sums that a release may have."""
    mechanism = task.mechanism
    claims = [Enrolment(ClientId(f"owner-{n}"), 1, 1.0) for n in range(clients)]
    most: int = mechanism.most_sum(claims)
    return (2 * most + 1).bit_length()


def step_bits(task: Task, clients: int) -> int:
    """Bits of the largest coordinate of a step, its sign's with it, as is to be expected.

    Noise alone has a largest of d coordinates near the quantile 1 − 1/(2d) of its
    magnitude. The clients' own sum comes on top, at worst.
    """
    mechanism = task.mechanism
    unit = math.ldexp(1.0, mechanism.step_shift)
    largest_of_noise = (
        math.sqrt(2)
        * mechanism.noise_units
        * NormalDist().inv_cdf(1 - 1 / (4 * task.dimension))
    )
    total = np.sum(vectors(clients, task.dimension, mechanism.bound), axis=0)
    largest = (float(np.abs(total).max()) + largest_of_noise) / unit
    return round(largest).bit_length() + 1


def whole_words(task: Task, clients: int) -> Bytes:
    """What links carry while shares are words of 64 bits and models float32."""
    return _links(
        task,
        clients,
        share_bytes=WORD_BYTES * task.dimension,
        model_bytes=FLOAT_BYTES * task.dimension,
    )


def cut_words(task: Task, clients: int) -> Bytes:
    """What they carry once shares are cut to ``share_bits`` and steps go to clients."""
    return _links(
        task,
        clients,
        share_bytes=_packed(share_bits(task, clients), task.dimension),
        model_bytes=_packed(step_bits(task, clients), task.dimension),
    )


def plain(dimension: int, clients: int) -> Bytes:
    """Plain averaging's and Flower's: float32 both ways."""
    moved = FLOAT_BYTES * dimension * clients
    return {"clients to server": moved, "server to clients": moved}


def _packed(bits: int, count: int) -> int:
    return -(-bits * count // 8)


def _links(task: Task, clients: int, *, share_bytes: int, model_bytes: int) -> Bytes:
    # Each server serves every other client.
    served_by_a = (clients + 1) // 2
    models = {
        "server-a to clients": served_by_a * model_bytes,
        "server-b to clients": (clients - served_by_a) * model_bytes,
    }
    if task.proof is None:
        body = WORD_BYTES * task.dimension
        check = (
            clients * comparisons_per_client(task) * _WORDS_PER_COMPARISON * WORD_BYTES
        )
        return {
            "clients to server-b": clients * body,
            **models,
            "server-a to server-b": share_bytes + check,
            # B hands all bodies on to A.
            "server-b to server-a": share_bytes + check + clients * body,
        }
    body = WORD_BYTES * task.proof.body_words
    check = clients * words_bytes(task.proof)
    # Who serves a client its models gets its seed, and the other one the body.
    return {
        "clients to server-a": (clients - served_by_a) * body,
        "clients to server-b": served_by_a * body,
        **models,
        "server-a to server-b": share_bytes + check,
        "server-b to server-a": share_bytes + check,
    }
