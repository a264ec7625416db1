"""Draws the data's way and a round's messages: `python docs/pictures/draw_round.py`.

A test compares them.
"""

from html import escape
from pathlib import Path

INK, PALE, LINE, MASKED, OPEN = "#1b2733", "#f4f7fa", "#5b7083", "#0b5fa8", "#a8480b"
ROW = 44
LANES = {"owner": 110, "A": 400, "B": 660, "dealer": 890}
NAMES = {
    "owner": "data owner",
    "A": "server A (leader)",
    "B": "server B (helper)",
    "dealer": "dealer (crypten alone)",
}
WIDTH = 1000

Step = tuple[str, str, str, str]
"""From, to, words, colour; a note where both ends are one."""

ROUND: tuple[Step, ...] = (
    ("A", "B", "coin: committed, then opened; who is drawn follows", LINE),
    ("A", "B", "cohort and attempt; B checks both, opens its inbox, agrees", LINE),
    ("A", "owner", "attempt, version, digest, drawn or not", LINE),
    ("A", "owner", "model θ_t; B names its digest", LINE),
    ("owner", "owner", "sample, clip, sum: X", OPEN),
    ("owner", "owner", "kept and charged on disk", OPEN),
    ("owner", "A", "signed header, seed s_A", MASKED),
    ("owner", "B", "the same header, seed s_B, masked body b", MASKED),
    ("A", "B", "same signed bytes? then the submission is matched", LINE),
    ("A", "dealer", "seed s_A", MASKED),
    ("B", "dealer", "seed s_B", MASKED),
    ("dealer", "B", "rows' key, share of a·a", MASKED),
    ("dealer", "A", "rows' key, share of a·a", MASKED),
    ("B", "A", "b, piece by piece", MASKED),
    ("A", "B", "who is held alike: the collection closes", LINE),
    ("A", "B", "range test and exact norm: one bit a submission", MASKED),
    ("A", "A", "sum + own noise, charged", OPEN),
    ("B", "B", "sum + own noise, charged", OPEN),
    ("A", "B", "ledger heads, countersigned by the other", LINE),
    ("A", "B", "noisy shares, the same bytes whenever asked", MASKED),
    ("A", "B", "θ_{t+1}: both sign one digest", LINE),
    ("A", "owner", "over: counted or why not; signed statement", LINE),
)
BOTH_WAYS = {0, 1, 8, 14, 15, 18, 19, 20}
"""Rows in which both servers speak."""


def words(x: float, y: float, said: str, colour: str, *, bold: bool = False) -> str:
    """One line, centred on x."""
    weight = "bold" if bold else "normal"
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-weight="{weight}" '
        f'text-anchor="middle">{escape(said)}</text>'
    )


def arrow(x1: float, x2: float, y: float, colour: str, *, both: bool = False) -> str:
    """From x1 to x2, or both ways."""
    head = {LINE: "l", MASKED: "m", OPEN: "o"}[colour]
    start = f' marker-start="url(#{head})"' if both else ""
    return (
        f'<line x1="{x1:g}" y1="{y:g}" x2="{x2:g}" y2="{y:g}" stroke="{colour}"'
        f' stroke-width="2" marker-end="url(#{head})"{start}/>'
    )


def picture(height: int, *parts: str) -> str:
    """A whole picture on white, so that it is read on dark pages too."""
    heads = "".join(
        f'<marker id="{name}" markerUnits="userSpaceOnUse" markerWidth="10"'
        ' markerHeight="8" refX="9" refY="4" orient="auto-start-reverse"><path d="M0,0'
        f' L9,4 L0,8 z" fill="{colour}"/></marker>'
        for name, colour in (("l", LINE), ("m", MASKED), ("o", OPEN))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="14">'
        f'<defs>{heads}</defs><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def box(
    x: float, y: float, width: float, lines: tuple[str, ...], *, height: float = 0
) -> str:
    """Centred on x; the first line is bold."""
    least = 16 + 20 * len(lines)
    height = max(height, least)
    top = y + (height - least) / 2
    rect = (
        f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="{height}"'
        f' rx="8" fill="{PALE}" stroke="{LINE}"/>'
    )
    return rect + "".join(
        words(x, top + 24 + 20 * number, said, INK, bold=not number)
        for number, said in enumerate(lines)
    )


def sequence() -> str:
    """Every message of an attempt that is released."""
    bottom = 90 + ROW * len(ROUND)
    parts = [
        part
        for name, x in LANES.items()
        for part in (
            (
                f'<line x1="{x}" y1="56" x2="{x}" y2="{bottom}" stroke="{LINE}" '
                'stroke-dasharray="4 4"/>'
            ),
            box(x, 18, 180, (NAMES[name],)),
        )
    ]
    for row, (start, end, said, colour) in enumerate(ROUND):
        y = 96 + ROW * row
        x1, x2 = LANES[start], LANES[end]
        if start == end:
            parts.append(
                f'<rect x="{x1 - 95}" y="{y - 20}" width="190" height="28" rx="6"'
                f' fill="#fff7f0" stroke="{OPEN}"/>'
            )
            parts.append(words(x1, y - 1, said, OPEN))
            continue
        middle = (x1 + x2) / 2
        width = 7.2 * len(said)
        parts += [
            arrow(x1, x2, y, colour, both=row in BOTH_WAYS),
            (
                f'<rect x="{middle - width / 2:g}" y="{y - 23}" width="{width:g}"'
                ' height="18" fill="#ffffff" fill-opacity="0.9"/>'
            ),
            words(middle, y - 9, said, colour),
        ]
    return picture(bottom + 20, *parts)


def data_way() -> str:
    """Where an update goes, and what each party holds of it."""
    tall = 296
    return picture(
        400,
        box(
            140,
            20,
            240,
            (
                "data owner",
                "sample records",
                "clip each gradient, sum",
                "clip the sum: integers X",
                "b = X − mask A − mask B",
            ),
            height=tall,
        ),
        box(
            500,
            20,
            260,
            ("server A", "mask A from its seed, and b", "valid: sum + own noise"),
        ),
        box(
            500,
            240,
            260,
            ("server B", "mask B from its seed, and b", "valid: sum + own noise"),
        ),
        box(
            880,
            20,
            200,
            (
                "dealer",
                "sees both masks, never b",
                "deals random values",
                "for the norm check",
                "",
                "with validation = proof",
                "there is none: owners",
                "prove their own norms",
            ),
            height=tall,
        ),
        arrow(260, 370, 60, MASKED),
        words(315, 48, "32-byte seed", MASKED),
        arrow(260, 370, 280, MASKED),
        words(315, 268, "seed; b", MASKED),
        _vertical(440, 240, 96, MASKED),
        words(425, 172, "b", MASKED),
        _vertical(500, 96, 240, MASKED, both=True),
        words(625, 152, "norm within the bound?", MASKED),
        words(625, 172, "one bit a submission,", MASKED),
        words(625, 192, "then the noisy sums", MASKED),
        arrow(630, 780, 60, MASKED, both=True),
        words(705, 48, "seed; dealt values", MASKED),
        arrow(630, 780, 280, MASKED, both=True),
        words(705, 268, "seed; dealt values", MASKED),
        _vertical(500, 316, 348, OPEN),
        box(
            500,
            348,
            660,
            ("the next model: the same at both servers, and for all owners",),
        ),
    )


def _vertical(
    x: float, y1: float, y2: float, colour: str, *, both: bool = False
) -> str:
    head = {LINE: "l", MASKED: "m", OPEN: "o"}[colour]
    start = f' marker-start="url(#{head})"' if both else ""
    return (
        f'<line x1="{x:g}" y1="{y1:g}" x2="{x:g}" y2="{y2:g}" stroke="{colour}"'
        f' stroke-width="2" marker-end="url(#{head})"{start}/>'
    )


def pictures() -> dict[str, str]:
    """Every picture, by its file's name."""
    return {"round.svg": sequence(), "data-way.svg": data_way()}


if __name__ == "__main__":
    for name, drawn in pictures().items():
        (Path(__file__).parent / name).write_text(drawn, encoding="utf-8")
