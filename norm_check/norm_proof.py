"""A client's proof that its norm is within the bound, and how two servers check it.

A fully linear proof (Boneh, Boneh, Corrigan-Gibbs, Gilboa, Ishai 2019) in the field of
p elements, with this project's rows (docs/soundness.md, part 4). f_i is the polynomial
through column i of the circuit's rows, row m at ω^m and a masking row at 1; h = Σ f_i².
The client shares its inputs and the values of h. A server's answer at a random point t
is linear in its shares, and says nothing of them.

Shares are ``[n] uint64`` below p; the holder of the seed adds the public constants.
"""

from collections.abc import Callable, Iterator
from dataclasses import field

import numpy as np

from precad.common import (
    Digest,
    Integers,
    P,
    ProofShape,
    Secret,
    derive,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)
from precad.common.kernel import HALF_BITS, Rows
from precad.norm_check import (
    FieldKeystream,
    FieldVector,
    arithmetic,
    of_signed,
    powers,
    root_of_unity,
)

_COLUMNS_AT_ONCE = 64
"""Columns that are transformed together."""


def bits_of(
    shape: ProofShape,
    z: Integers,
    *,
    squared: int,
    bound: int,
) -> FieldVector:
    """Return the bits of all projections + B and of β_i² − X·X, ``[bits] uint64``.

    ``z`` are the projections ⟨row, X⟩, ``[k] int64``; ``squared`` is X·X; ``bound`` is
    β_i ≤ β, this client's own: the bits are as many for every client. What is out
    of range is written modulo 2B or 2^s₂ and sent like any other: the servers refuse
    it, and nothing shows before.
    """
    # z lies in [−B, B) if the row passes; z + B is what the bits write.
    shifted = (z + shape.half_width) % (2 * shape.half_width)
    width = len(shape.weights)
    # The last bit may count less than the next power of two (``ProofShape.weights``).
    # It is set where the others alone can't write the number.
    last_weight = shape.weights[-1]
    last_bit = shifted >= 2 ** (width - 1)
    others = np.where(last_bit, shifted - last_weight, shifted)
    bits = (others[:, None] >> np.arange(width)) & 1
    bits[:, -1] = last_bit
    slack = (bound**2 - squared) % 2**shape.slack_bits
    slack_bits = [(slack >> i) & 1 for i in range(shape.slack_bits)]
    return np.concatenate([bits.ravel(), slack_bits]).astype(np.uint64)


def projections(rows: Rows) -> FieldVector:
    """Return the projections mod p of a share, ``[k] uint64``.

    ``rows`` have absorbed the share's words, read as int64. Their projections come in
    halves, as sums over the integers: low + 2^HALF_BITS·high.
    """
    modulo_p = arithmetic()
    low, high = (of_signed(half) for half in np.ascontiguousarray(rows.halves().T))
    factor = np.full(high.size, 2**HALF_BITS, np.uint64)
    return modulo_p.add(low, modulo_p.multiply(high, factor))


def bit_challenges(shape: ProofShape, key: Secret) -> FieldVector:
    """Return μ₁ and μ₂, which bind every bit to be 0 or 1: ``[2, shape.bits] uint64``.

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
    """Return the proof of an update: values of h, ``[shape.values] uint64``.

    They are those at 1, at the used rows' points and at the odd 2N-th roots of unity:
    h has a degree below 2N, and is 0 at the other N-th roots, whose rows are empty.

    ``x`` is the update, ``[d]``; ``bits`` are its ``bits_of``, ``[bits]``; ``mu`` are
    their ``bit_challenges``, ``[2, bits]``. ``mask`` is the masking row u, ``[c_w]``:
    uniform, and for this proof alone.
    """
    modulo_p = arithmetic()
    # h at the even and at the odd 2N-th roots of unity: the N-th roots, and the rest.
    even, odd = np.zeros((2, shape.points), np.uint64)
    # Each input with the first of its rows.
    inputs = [(x, 1)]
    for number, challenge in enumerate(mu):
        first = 1 + shape.update_rows + number * shape.bit_rows
        inputs.append((modulo_p.multiply(challenge, bits), first))
    columns = shape.columns
    for start in range(0, columns, _COLUMNS_AT_ONCE):
        stop = min(start + _COLUMNS_AT_ONCE, columns)
        rows = np.zeros((shape.points, stop - start), np.uint64)
        rows[0] = mask[start:stop]
        for vector, first in inputs:
            whole = vector.size // columns
            whole_rows = vector[: whole * columns].reshape(whole, columns)
            rows[first : first + whole] = whole_rows[:, start:stop]
            # The vector's last row may be shorter; what it lacks stays as it is.
            last_row = vector[whole * columns + start : whole * columns + stop]
            if last_row.size:
                rows[first + whole, : last_row.size] = last_row
        modulo_p.squares(rows, even)
        modulo_p.shift(rows, root_of_unity(2 * shape.points))
        modulo_p.squares(rows, odd)
    return np.concatenate([even[: 1 + shape.used], odd])


@frozen_kw_only_dataclass
class Query:
    """What the servers ask of a proof: h and the wires f_i at a point t.

    t is no root of unity of order 2N.
    """

    shape: ProofShape
    t: int
    rho: FieldVector = field(repr=False)
    """ρ: a weight for each linear relation, ``[k + 3]``."""
    wires: FieldVector = field(repr=False)
    """The Lagrange weights L_m(t) over the N-th roots, ``[N]``."""
    proof: FieldVector = field(repr=False)
    """Those over the 2N-th roots, in the order of the proof's words, ``[values]``."""

    @classmethod
    def at(cls, shape: ProofShape, t: int, rho: FieldVector) -> "Query":
        """Return the query at a point.

        Raises ValueError: the point is one of the proof's own.
        """
        if pow(t, 2 * shape.points, P) == 1:
            raise ValueError("a query's point must be no root of unity of the proof")
        modulo_p = arithmetic()
        # Even places are the N-th roots, of which the proof has the used ones alone.
        weights = modulo_p.lagrange(2 * shape.points, t)
        proof = np.concatenate([weights[::2][: 1 + shape.used], weights[1::2]])
        return cls(
            shape=shape,
            t=t,
            rho=rho,
            wires=modulo_p.lagrange(shape.points, t),
            proof=proof,
        )

    @classmethod
    def drawn(cls, shape: ProofShape, coin: Secret, submission: Digest) -> "Query":
        """Draw t and ρ of a submission from the servers' joint coin, alike at both.

        ``submission`` is the whole digest of its header. t is drawn again while it is
        one of the proof's own points.
        """
        key = derive(coin, "proof/query", submission.value)
        draw = 0
        while True:
            words = FieldKeystream(key, "proof/query", draw).words(1 + shape.challenges)
            if pow(int(words[0]), 2 * shape.points, P) != 1:
                return cls.at(shape, int(words[0]), words[1:])
            draw += 1


@frozen_dataclass
class ProofWords:
    """One server's answer: c_w + 2 words.

    They are uniform to whoever lacks the other server's share.
    """

    wires: FieldVector = field(repr=False)
    """Its shares of all f_i(t), ``[c_w]``."""
    value: int = field(repr=False)
    """Its share of h(t)."""
    zero: int = field(repr=False)
    """Its share of the sum of the linear relations, each times its ρ."""


@frozen_kw_only_dataclass
class ProofShare:
    """One server's share of what a proof has beside the update.

    A constant is shared as (constant, 0): the seed's holder has it.
    """

    bits: FieldVector = field(repr=False)
    """Of the bits that ``bits_of`` writes."""
    mask: FieldVector = field(repr=False)
    """Of the masking row u."""
    values: FieldVector = field(repr=False)
    """Of the values of h."""
    z: FieldVector = field(repr=False)
    """Of the projections."""
    bound: int
    """β_i: the bound on this update's norm, a public constant."""
    holds_constants: bool
    """Whether this server is the seed's holder."""


def answer(
    query: Query,
    pieces: Iterator[FieldVector],
    beside: Callable[[], ProofShare],
    mu: FieldVector,
) -> ProofWords:
    """Return this server's words for one submission, fixed before the query was drawn.

    ``pieces`` are this server's share of the update, ``[d]`` in all, in order, of any
    lengths; ``beside`` gives the rest of what it holds, and is called once they have
    ended; ``mu`` are the ``bit_challenges``, ``[2, bits]``. One pass over the share is
    enough, so that an update needn't be in memory.
    """
    shape = query.shape
    modulo_p = arithmetic()
    wires = np.zeros(shape.columns, np.uint64)
    _add_rows(query, wires, pieces, 1)
    share = beside()
    modulo_p.combine(share.mask[None], query.wires[:1], wires)
    for number, challenge in enumerate(mu):
        first = 1 + shape.update_rows + number * shape.bit_rows
        inputs = modulo_p.multiply(challenge, share.bits)
        _add_rows(query, wires, iter([inputs]), first)
    return ProofWords(
        wires=wires,
        value=modulo_p.dot(query.proof, share.values),
        zero=_relations(query, share, mu),
    )


def _add_rows(
    query: Query,
    wires: FieldVector,
    pieces: Iterator[FieldVector],
    first: int,
) -> None:
    """Add a vector's rows, each times its weight at t, to the wires, for ``answer``.

    ``wires`` are ``[c_w]``, changed in place. ``pieces`` are the vector, in order, of
    any lengths; in the circuit its rows begin with row ``first``.
    """
    modulo_p = arithmetic()
    columns = query.shape.columns
    done = 0
    for piece in pieces:
        start = 0
        while start < piece.size:
            row, column = divmod(done, columns)
            # As many whole rows as the piece has; else a part of one.
            left = piece.size - start
            count = 1 if column else max(1, left // columns)
            size = min(count * columns - column, left)
            words = piece[start : start + size].reshape(count, -1)
            weights = query.wires[first + row : first + row + count]
            modulo_p.combine(words, weights, wires[column : column + words.shape[1]])
            start += size
            done += size


def _relations(query: Query, share: ProofShare, mu: FieldVector) -> int:
    """Return this server's share of Σ of ρ times each linear relation, for ``answer``.

    For an honest client each relation is 0, in the order of ρ:

    - the norm: the squares of the update's rows and the slack make β_i². The rows'
      ranges hold X·X below 2^12.22·β² and the slack is below 2^51, so nothing wraps;
    - for each of μ₁ and μ₂ the bits: the squares of the bits' rows are Σ μ²·e;
    - for every row its projection: z + B is what its bits write.
    """
    shape = query.shape
    modulo_p = arithmetic()
    # h at a row's point is the sum of that row's squares.
    squares = share.values[1 : 1 + shape.used].tolist()
    row_bits = share.bits[: shape.rows * len(shape.weights)].reshape(shape.rows, -1)
    slack_bits = share.bits[row_bits.size :]
    slack = modulo_p.dot(powers(2, slack_bits.size), slack_bits)
    norm = sum(squares[: shape.update_rows]) + slack
    relations = [norm - share.holds_constants * share.bound**2]
    for number, challenge in enumerate(mu):
        first = shape.update_rows + number * shape.bit_rows
        squared = modulo_p.multiply(challenge, challenge)
        relations.append(
            sum(squares[first : first + shape.bit_rows])
            - modulo_p.dot(squared, share.bits)
        )
    written = np.zeros(shape.rows, np.uint64)
    weights = np.array(shape.weights, np.uint64)
    modulo_p.combine(np.ascontiguousarray(row_bits.T), weights, written)
    constant = share.holds_constants * shape.half_width
    differences = modulo_p.subtract(share.z, written).tolist()
    relations += [difference + constant for difference in differences]
    terms = zip(query.rho.tolist(), relations, strict=True)
    return int(sum(rho * relation for rho, relation in terms) % P)


def accepts(own: ProofWords, other: ProofWords) -> bool:
    """Whether the two servers' answers say that the norm is within the bound.

    Σ f_i(t)² has to be h(t), and the linear relations have to be 0. An honest client's
    are; a longer update passes as rarely as docs/soundness.md, part 4, says.
    """
    modulo_p = arithmetic()
    wires = modulo_p.add(own.wires, other.wires)
    value = (own.value + other.value) % P
    return modulo_p.dot(wires, wires) == value and (own.zero + other.zero) % P == 0
