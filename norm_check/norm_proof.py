"""A client's proof that its norm is within the bound, and what two servers compute of it.

A fully linear proof (Boneh, Boneh, Corrigan-Gibbs, Gilboa, Ishai 2019) in the field of
p elements, with this project's rows (docs/soundness.md, part 4). f_i is the polynomial
through column i of the circuit's rows, row m at ω^m and a masking row at 1; h = Σ f_i².
The client shares its inputs and h's values; a server's answer at a random t is linear
in its shares, and says nothing of them.

Shares are ``[n] uint64`` below p; the holder of the seed adds the public constants.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.common.identifiers import Digest, Secret
from precad.common.kernel import HALF_BITS, Rows
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import (
    derive,
)
from precad.norm_check.prime_field import (
    FieldKeystream,
    FieldVector,
    arithmetic,
    of_signed,
    powers,
    root_of_unity,
)

_TOGETHER = 64
"""Columns that are transformed together."""


def bits_of(shape: ProofShape, z: NDArray[np.int64], squared: int) -> FieldVector:
    """The bits of all projections + B and of β² − X·X, ``[shape.bits] uint64``.

    What is out of range is written modulo 2B or 2^s₂ and sent like any other: the
    servers refuse it, and nothing shows before. ``z`` are the projections ⟨row, X⟩,
    ``[k] int64``; ``squared`` is X·X.
    """
    shifted = (z + shape.half_width) % (2 * shape.half_width)
    width = len(shape.weights)
    last = shape.weights[-1]
    top = shifted >= 2 ** (width - 1)
    rest = np.where(top, shifted - last, shifted)
    bits = (rest[:, None] >> np.arange(width)) & 1
    bits[:, -1] = top
    slack = (shape.bound**2 - squared) % 2**shape.slack_bits
    of_slack = [(slack >> i) & 1 for i in range(shape.slack_bits)]
    return np.concatenate([bits.ravel(), of_slack]).astype(np.uint64)


def projections(rows: Rows) -> FieldVector:
    """The projections mod p, ``[k] uint64``, of a share whose words were absorbed as int64."""
    math = arithmetic()
    low, high = (of_signed(half) for half in np.ascontiguousarray(rows.halves().T))
    shifted = math.multiply(high, np.full(high.size, 2**HALF_BITS, dtype=np.uint64))
    return math.add(low, shifted)


def bit_challenges(shape: ProofShape, key: Secret) -> FieldVector:
    """μ₁ and μ₂, ``[2, shape.bits] uint64``: they bind every bit to be 0 or 1.

    ``key`` is a hash of what fixes the bits.
    """
    return FieldKeystream(key, "proof/bits").words(2 * shape.bits).reshape(2, -1)


def prove(
    shape: ProofShape,
    *,
    x: FieldVector,
    bits: FieldVector,
    mu: FieldVector,
    mask: FieldVector,
) -> FieldVector:
    """H at 1, at the used rows' points and at the odd 2N-th roots, ``[shape.values] uint64``.

    Of the update x, ``[d]``, its ``bits_of`` and their ``bit_challenges``. The mask u,
    ``[c_w]``, is uniform, and for this proof alone.
    """
    math = arithmetic()
    even, odd = (np.zeros(shape.points, dtype=np.uint64) for _ in range(2))
    inputs = [(x, 1)]
    for number, challenge in enumerate(mu):
        at = 1 + shape.update_rows + number * shape.bit_rows
        inputs.append((math.multiply(challenge, bits), at))
    for start in range(0, shape.columns, _TOGETHER):
        stop = min(start + _TOGETHER, shape.columns)
        rows = np.zeros((shape.points, stop - start), dtype=np.uint64)
        rows[0] = mask[start:stop]
        for vector, at in inputs:
            _put_columns(
                rows=rows[at:],
                vector=vector,
                start=start,
                stop=stop,
                columns=shape.columns,
            )
        math.squares(rows, even)
        math.shift(rows, root_of_unity(2 * shape.points))
        math.squares(rows, odd)
    return np.concatenate([even[: 1 + shape.used], odd])


def _put_columns(
    *,
    rows: FieldVector,
    vector: FieldVector,
    start: int,
    stop: int,
    columns: int,
) -> None:
    """Columns ``start`` to ``stop`` of the vector, written in rows of ``columns`` words."""
    whole = vector.size // columns
    rows[:whole] = vector[: whole * columns].reshape(whole, columns)[:, start:stop]
    rest = vector[whole * columns + start : whole * columns + stop]
    if rest.size:
        rows[whole, : rest.size] = rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The point t where h and the wires are asked for, and each relation's weight ρ, ``[k + 3]``.

    ``wires`` are the L_m(t) over the N-th roots, ``[N]``; ``proof`` are those over the
    2N-th roots, in the order of the proof's words, ``[values]``. t is no such root.
    """

    shape: ProofShape
    t: int
    rho: FieldVector = field(repr=False)
    wires: FieldVector = field(repr=False)
    proof: FieldVector = field(repr=False)

    @classmethod
    def at(cls, shape: ProofShape, t: int, rho: FieldVector) -> "Query":
        """The query at that point. Raises ValueError: it is one of the proof's own."""
        if pow(t, 2 * shape.points, P) == 1:
            raise ValueError("a query's point must be no root of unity of the proof")
        math = arithmetic()
        of_proof = math.lagrange(2 * shape.points, t)
        proof = np.concatenate([of_proof[::2][: 1 + shape.used], of_proof[1::2]])
        return cls(
            shape=shape,
            t=t,
            rho=rho,
            wires=math.lagrange(shape.points, t),
            proof=proof,
        )

    @classmethod
    def drawn(cls, shape: ProofShape, coin: Secret, submission: Digest) -> "Query":
        """(t, ρ) of a submission from the servers' joint coin, alike at both."""
        key = derive(coin, "proof/query", submission.value)
        again = 0
        while True:
            words = FieldKeystream(key, "proof/query", again).words(
                1 + shape.challenges
            )
            if pow(int(words[0]), 2 * shape.points, P) != 1:
                return cls.at(shape, int(words[0]), words[1:])
            again += 1


@dataclass(frozen=True, slots=True)
class ProofWords:
    """One server's answer: c_w + 2 words, uniform to whoever lacks the other's share.

    Its shares of all f_i(t), of h(t), and of the sum of the linear relations, each
    times its ρ.
    """

    wires: FieldVector = field(repr=False)
    value: int = field(repr=False)
    zero: int = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofShare:
    """One server's share of what a proof has beside the update: bits, u, h's values, projections.

    Constants are shared as (constant, 0): the seed's holder holds them.
    """

    bits: FieldVector = field(repr=False)
    mask: FieldVector = field(repr=False)
    values: FieldVector = field(repr=False)
    z: FieldVector = field(repr=False)
    holds_constants: bool


def answer(
    query: Query,
    pieces: Iterator[FieldVector],
    beside: Callable[[], ProofShare],
    mu: FieldVector,
) -> ProofWords:
    """This server's words for one submission, whose query was drawn after it was fixed.

    ``pieces`` are this server's share of the update, in order, of any lengths;
    ``beside`` gives the rest of what it holds, once they have ended; ``mu`` is of
    ``bit_challenges``.
    """
    shape = query.shape
    math = arithmetic()
    wires = np.zeros(shape.columns, dtype=np.uint64)
    _add_rows(query, wires, pieces, 1)
    share = beside()
    math.combine(share.mask[None], query.wires[:1], wires)
    for number, challenge in enumerate(mu):
        at = 1 + shape.update_rows + number * shape.bit_rows
        _add_rows(query, wires, iter([math.multiply(challenge, share.bits)]), at)
    return ProofWords(
        wires, math.dot(query.proof, share.values), _relations(query, share, mu)
    )


def _add_rows(
    query: Query,
    wires: FieldVector,
    pieces: Iterator[FieldVector],
    first: int,
) -> None:
    """Add rows, from row ``first`` on, each times its weight at t, to the wires."""
    math = arithmetic()
    columns = query.shape.columns
    done = 0
    for piece in pieces:
        at = 0
        while at < piece.size:
            row, column = divmod(done, columns)
            whole = 1 if column else max(1, (piece.size - at) // columns)
            size = min(whole * columns - column, piece.size - at)
            words = piece[at : at + size].reshape(whole, -1)
            weights = query.wires[first + row : first + row + whole]
            math.combine(words, weights, wires[column : column + words.shape[1]])
            at = at + size
            done = done + size


def _relations(query: Query, share: ProofShare, mu: FieldVector) -> int:
    """Σ of ρ times each relation: the norm, the bits twice, every row."""
    shape = query.shape
    math = arithmetic()
    outputs = [int(each) for each in share.values[1 : 1 + shape.used]]
    of_rows = share.bits[: shape.rows * len(shape.weights)].reshape(shape.rows, -1)
    of_slack = share.bits[of_rows.size :]
    norm = sum(outputs[: shape.update_rows]) + math.dot(
        powers(2, of_slack.size), of_slack
    )
    found = [norm - share.holds_constants * shape.bound**2]
    for number, challenge in enumerate(mu):
        at = shape.update_rows + number * shape.bit_rows
        squared = math.multiply(challenge, challenge)
        found.append(
            sum(outputs[at : at + shape.bit_rows]) - math.dot(squared, share.bits)
        )
    written = np.zeros(shape.rows, dtype=np.uint64)
    weights = np.array(shape.weights, dtype=np.uint64)
    math.combine(np.ascontiguousarray(of_rows.T), weights, written)
    rows = math.subtract(share.z, written)
    constant = share.holds_constants * shape.half_width
    found += [int(each) + constant for each in rows]
    return sum(int(rho) * each for rho, each in zip(query.rho, found, strict=True)) % P


def accepts(own: ProofWords, other: ProofWords) -> bool:
    """Whether the two answers say that the norm is within the bound."""
    math = arithmetic()
    wires = math.add(own.wires, other.wires)
    value = (own.value + other.value) % P
    return math.dot(wires, wires) == value and (own.zero + other.zero) % P == 0
