"""How many records each owner holds, as a person writes it: `10x6000`, or `3x500,1200,6x40`."""

import re
from itertools import groupby

from precad.common.errors import Misconfiguration

MOST_OWNERS = 100_000
"""The most that a task takes."""

_PART = re.compile(r"(?:([0-9][0-9_]{0,15})\s*[xX×]\s*)?([0-9][0-9_]{0,15})")
_FORM = "like 10x6000 (ten owners of 6,000), separated by commas where they differ"


def owners_sizes(text: str) -> tuple[int, ...]:
    """Records of each owner, in order.

    Args:
        text: sizes separated by commas, each with the number of owners that have it before an x
            (1 if there is none); underscores group digits.

    Raises:
        Misconfiguration: a part isn't of this form, a number is 0, or there are more owners than
            a task takes.
    """
    sizes: list[int] = []
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            where = "" if part == text else f"'{part.strip()}' is no size: "
            raise Misconfiguration("records", text, f"{where}give whole numbers {_FORM}")
        owners, size = int(found[1] or "1"), int(found[2])
        if not owners or not size:
            raise Misconfiguration(
                "records", text, f"'{part.strip()}': give 1 or more, owners and records alike"
            )
        if len(sizes) + owners > MOST_OWNERS:
            raise Misconfiguration("records", text, f"a task takes at most {MOST_OWNERS:,} owners")
        sizes += [size] * owners
    return tuple(sizes)


def sizes_text(sizes: tuple[int, ...]) -> str:
    """Return the shortest text of these sizes in their order; ``owners_sizes`` reads it back."""
    runs = [(len(list(run)), size) for size, run in groupby(sizes)]
    return ",".join(str(size) if owners == 1 else f"{owners}x{size}" for owners, size in runs)
