"""Prefix sums of a histogram by their square-root factorisation, in whole numbers.

The matrix A of prefix sums (ones on and below the diagonal) is C·C for a lower
triangular Toeplitz C, whose first column c is that of the series (1 − x)^(−1/2): 1,
1/2, 3/8, … (Bennett 1977; Fichtenberger, Henzinger and Upadhyay 2023). A record in bin b
adds column b of C, which is c from place b on; whoever decodes the sum multiplies by
A·C⁻¹. At 1,024 bins a prefix sum then has 3.1 times a lone count's noise, where adding
up a histogram gives 16 times.

Entries are rounded down to whole units, the same for every record, and what is inverted
is the rounded matrix: rounding costs no accuracy, and no record is longer for it.
"""

import math
from functools import cache
from itertools import accumulate

_FINE = 32
"""Bits below a unit that the entries are computed with."""


@cache
def first_column(unit: int, length: int) -> tuple[int, ...]:
    """Return floor(unit·c), nearly: never more, and the same on every platform."""
    exact = accumulate(
        range(1, length),
        lambda entry, place: entry * (2 * place - 1) // (2 * place),
        initial=unit << _FINE,
    )
    return tuple(entry >> _FINE for entry in exact)


@cache
def first_entry(norm: int, length: int) -> int:
    """Return the largest unit whose column has a norm of at most ``norm``."""
    fine = first_column(1 << _FINE, length)
    # Each entry was rounded down by less than one.
    squares = sum((entry + 1) ** 2 for entry in fine)
    return (norm << _FINE) // (math.isqrt(squares) + 1)
