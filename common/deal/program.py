"""Which binary triples a batch of comparisons demands, in order.

Known ahead of the comparisons, so that the dealer can deal before a round needs it, and so that
the provider can refuse any demand that isn't the expected one. Kept free of CrypTen: the dealer
reads it too.
"""

from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]
_TREE_DEPTH = 6
"""log2 of 64: levels of the carry tree."""


def comparison_triples(m: int) -> tuple[tuple[Shape, Shape], ...]:
    """Operand shapes of the ANDs that CrypTen 0.4.1 computes to take ``m`` sign bits.

    Adding two binary sharings takes one AND of the words, then one AND a level of the carry tree,
    in which the pair (set, propagate) is stacked.

    Args:
        m: number of comparisons in the batch, at least 1.

    Returns:
        Seven pairs of shapes; the result of each AND has the shape of its operands.
    """
    return (((m,), (m,)), *((((2, m), (2, m)),) * _TREE_DEPTH))
