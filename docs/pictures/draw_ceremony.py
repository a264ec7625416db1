"""Draws the ceremony's pictures: `python docs/pictures/draw_ceremony.py`.

A test compares them.
"""

from dataclasses import dataclass
from html import escape
from pathlib import Path

INK, PALE, LINE, KEY, TRAVELS = "#1b2733", "#f4f7fa", "#5b7083", "#a8480b", "#0b5fa8"
WIDTH = 860


@dataclass(frozen=True, slots=True)
class Box:
    """An organisation: its name and what it has, from the left, `x` and `width` wide."""

    x: int
    y: int
    width: int
    name: str
    lines: tuple[tuple[str, str], ...]
    """Colour and text."""
    least: int = 0

    @property
    def height(self) -> int:
        """All lines, with room around them."""
        return max(self.least, 50 + 22 * len(self.lines))

    def svg(self) -> str:
        """The box."""
        box = (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}"'
            f' height="{self.height}" rx="8" fill="{PALE}" stroke="{LINE}"/>'
        )
        parts = [box, text(self.x + 14, self.y + 26, self.name, INK, weight="bold")]
        for number, (colour, said) in enumerate(self.lines):
            parts.append(text(self.x + 14, self.y + 50 + 22 * number, said, colour))
        return "".join(parts)


def text(
    x: int, y: int, said: str, colour: str, *, weight: str = "normal", at: str = "start"
) -> str:
    """One line of words."""
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-weight="{weight}"'
        f' text-anchor="{at}">{escape(said)}</text>'
    )


def arrow(
    x1: int, y1: int, x2: int, y2: int, colour: str, *, dashed: bool = False
) -> str:
    """From the one to the other; dashed on the telephone."""
    dash = ' stroke-dasharray="6 5"' if dashed else ""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"'
        f' stroke-width="2"{dash}'
        f' marker-end="url(#{"t" if colour == TRAVELS else "l"})"/>'
    )


def picture(height: int, *parts: str) -> str:
    """A whole picture on white, so that it is read on dark pages too."""
    heads = "".join(
        f'<marker id="{name}" markerWidth="10" markerHeight="8" refX="8" refY="4"'
        f' orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="{colour}"/></marker>'
        for name, colour in (("t", TRAVELS), ("l", LINE))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="14">'
        f'<defs>{heads}</defs><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
        f"{''.join(parts)}</svg>\n"
    )


def who() -> str:
    """Who runs what, which key lies where, who calls whom."""
    mine = "an owner's process"
    north = Box(
        30,
        30,
        240,
        "North",
        (
            (INK, "server A  :7301"),
            (KEY, "● server-a's keys"),
            (INK, mine),
            (KEY, "● north-ward's key"),
        ),
    )
    south = Box(
        590,
        30,
        240,
        "South",
        (
            (INK, "server B  :7302"),
            (KEY, "● server-b's keys"),
            (INK, mine),
            (KEY, "● south-ward's key"),
        ),
    )
    west = Box(
        310,
        240,
        240,
        "West",
        (
            (INK, "dealer  :7303"),
            (KEY, "● dealer's key"),
            (INK, mine),
            (KEY, "● west-ward's key"),
            (KEY, "● operator's key"),
            (KEY, "● the root's key, in a safe"),
        ),
    )
    return picture(
        480,
        north.svg(),
        south.svg(),
        west.svg(),
        arrow(270, 70, 590, 70, LINE),
        text(430, 62, "A calls B", LINE, at="middle"),
        arrow(590, 118, 270, 118, LINE),
        arrow(270, 118, 590, 118, LINE),
        text(430, 110, "owners call A and B", LINE, at="middle"),
        arrow(150, 168, 310, 262, LINE),
        arrow(710, 168, 550, 262, LINE),
        text(140, 240, "A calls the dealer", LINE, at="middle"),
        text(720, 240, "B calls the dealer", LINE, at="middle"),
        arrow(380, 240, 262, 168, LINE),
        arrow(480, 240, 598, 168, LINE),
        text(430, 178, "West's owner", LINE, at="middle"),
        text(430, 196, "calls A and B", LINE, at="middle"),
        text(
            30, 460, "● a private key: made where it lies, and in no other folder", KEY
        ),
    )


def steps(title: str, keys: str, rows: tuple[tuple[str, str], ...]) -> str:
    """West on the left, North and South on the right, and what goes between them.

    Args:
        title: of the step.
        keys: what North and South have by then.
        rows: `out`, `back` or `telephone`, and what goes.
    """
    west = Box(
        30,
        60,
        220,
        "West",
        (
            (KEY, "● the root's key"),
            (INK, "prints SHA-256s"),
            (INK, "compares, then goes on"),
        ),
        least=224,
    )
    parts = [text(30, 36, title, INK, weight="bold"), west.svg()]
    for number, name in enumerate(("North", "South")):
        other = Box(
            610, 60 + 130 * number, 220, name, ((KEY, keys), (INK, "reads out"))
        )
        parts.append(other.svg())
        for row, (way, said) in enumerate(rows):
            y = other.y + 28 + 26 * row
            ends = (250, 610) if way == "out" else (610, 250)
            colour = LINE if way == "telephone" else TRAVELS
            parts.append(
                arrow(ends[0], y, ends[1], y, colour, dashed=way == "telephone")
            )
            parts.append(text(430, y - 6, said, colour, at="middle"))
    legend = (
        "solid: by post, public; dashed: read out on the telephone, which makes it"
        " trusted"
    )
    return picture(340, *parts, text(30, 320, legend, INK))


def pictures() -> dict[str, str]:
    """Every picture, by its file's name."""
    return {
        "ceremony-who.svg": who(),
        "ceremony-kits.svg": steps(
            "Step 3: kits go out, their SHA-256 is read out",
            "(no keys yet)",
            (
                ("out", "kit: task, settings, the root's certificate"),
                ("telephone", "SHA-256 of archive and root"),
            ),
        ),
        "ceremony-keys.svg": steps(
            "Step 4: requests come in, certificates go back",
            "● its own keys",
            (
                ("back", "request.pem"),
                ("telephone", "SHA-256 of the key"),
                ("out", "certificate, root, revocation list"),
            ),
        ),
    }


if __name__ == "__main__":
    for name, drawn in pictures().items():
        (Path(__file__).parent / name).write_text(drawn, encoding="utf-8")
