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


def conjunction_triples(clients: int, width: int) -> tuple[tuple[Shape, Shape], ...]:
    """Operand shapes of the ANDs that make one bit of each client's ``width``, in a tree.

    At each level the first half of a client's values meets the second, and an odd one waits:
    ⌈log2 width⌉ pairs of shapes ``(clients, pairs)``, seven where width is 81.
    """
    levels = []
    while width > 1:
        levels.append(((clients, width // 2),) * 2)
        width -= width // 2
    return tuple(levels)


def program(clients: int, comparisons: int) -> tuple[tuple[Shape, Shape], ...]:
    """Operand shapes of all ANDs of a batch: its sign bits, then each client's conjunction."""
    conjunctions = conjunction_triples(clients, comparisons // clients)
    return *comparison_triples(comparisons), *conjunctions
