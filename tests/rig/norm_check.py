"""The norm check by function secret sharing, played in one process by client, dealer and servers.

What each party computes is precad's; what it would send is bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tests.rig.submissions import Pair, words_of

from precad.common.identifiers import ClientId, Digest
from precad.common.ring import RingVector, dot, from_bytes, signed
from precad.common.secret import Secret
from precad.common.share.header import Signature, SubmissionContext
from precad.common.share.mask import norm_offset, norm_point, norm_word
from precad.common.share.submission import shard
from precad.common.task import Task
from precad.norm_check.comparison_keys import DcfKeys, keys_from_bytes
from precad.norm_check.distributed_comparison import Bits
from precad.norm_check.norm_gates import deal_gates, evaluate_gates, gate_context, pack, verdicts
from precad.norm_check.random_rows import Rows


class Unchecked:
    """A pen whose signatures nobody checks."""

    def sign(self, signed: bytes) -> Signature:
        return Signature(Digest.of(signed).value, (b"certificate",))


@dataclass(frozen=True)
class Signed:
    """A client's submission: one for each server, and its words as both servers have them."""

    pair: Pair
    words: tuple[int, int]

    @property
    def b(self) -> RingVector:
        return from_bytes(words_of(self.pair[1]))

    @property
    def square(self) -> int:
        a = self.mask(0) + self.mask(1)
        return dot(a, a)

    def mask(self, server: int) -> RingVector:
        return self.pair[server].mask().words(self.b.size)

    def word_mask(self, server: int) -> int:
        return self.pair[server].word_mask

    def word_right(self, server: int) -> bool:
        """What a server says of its own word."""
        crossed = dot(self.b, self.mask(server))
        return self.words[server] == norm_word(crossed, self.word_mask(server))


def client(task: Task, x: RingVector, lies: tuple[int, int] = (0, 0)) -> Signed:
    """A submission of ``x`` whose words are off by ``lies``."""
    pair = shard(
        x,
        SubmissionContext(task.digest, 0, 0, ClientId("ward-1"), Digest.of(b"model")),
        Unchecked(),
        words=True,
    )
    words = pair[0].header.words
    assert words is not None
    word_a, word_b = (signed(word + lie) for word, lie in zip(words, lies, strict=True))
    return Signed(pair, (word_a, word_b))


@dataclass(frozen=True)
class Dealt:
    """What each server gets from the dealer."""

    row_keys: list[Secret]
    keys: tuple[bytes, bytes]

    def keys_of(self, server: int, gates: int) -> DcfKeys:
        return keys_from_bytes(self.keys[server], party=server, gates=gates)


def dealer(task: Task, submissions: Sequence[Signed]) -> Dealt:
    """Sees contexts, commitments and seeds; never b, h or the words."""
    offsets, contexts, row_keys = [], [], []
    for each in submissions:
        row_key = Secret.random()
        masks = each.mask(0) + each.mask(1)
        offset = norm_offset(each.square, each.word_mask(0), each.word_mask(1))
        offsets.append(np.append(projected(task, row_key, masks), np.int64(offset)))
        of_a, of_b = each.pair
        contexts.append(gate_context(of_a.context.digest, of_a.seed, of_b.seed, row_key))
        row_keys.append(row_key)
    to_a, to_b = deal_gates(np.stack(offsets), contexts)
    return Dealt(row_keys, (to_a.to_bytes(), to_b.to_bytes()))


def points(task: Task, submissions: Sequence[Signed], dealt: Dealt) -> RingVector:
    """``[n, k + 1] int64``: from bodies and signed headers alone, the same at both servers."""
    found = []
    for each, row_key in zip(submissions, dealt.row_keys, strict=True):
        c = norm_point(*each.words, dot(each.b, each.b), task.bound)
        found.append(np.append(projected(task, row_key, each.b), np.int64(c)))
    return np.stack(found)


def bits_of(task: Task, server: int, submissions: Sequence[Signed], dealt: Dealt) -> Bits:
    """A server's shares of all gates, ``[n, k + 1] uint8``."""
    keys = dealt.keys_of(server, len(submissions) * (task.projections + 1))
    return evaluate_gates(keys, points(task, submissions, dealt), task.bound)


def play(task: Task, submissions: Sequence[Signed]) -> NDArray[np.bool_]:
    """Both servers' verdicts, which must be the same."""
    dealt = dealer(task, submissions)
    of_a, of_b = (
        pack(
            bits_of(task, server, submissions, dealt),
            np.array([each.word_right(server) for each in submissions]),
        )
        for server in (0, 1)
    )
    gates = task.projections + 1
    at_a, at_b = verdicts(of_a, of_b, gates), verdicts(of_b, of_a, gates)
    assert np.array_equal(at_a, at_b)
    return at_a


def projected(task: Task, row_key: Secret, words: RingVector) -> RingVector:
    rows = Rows(row_key, task.dimension, task.projections)
    rows.absorb(words)
    return rows.z()
