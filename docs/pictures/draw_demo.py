"""Draws demo.png, a demo's terminal in its middle and at its end.

    python docs/pictures/draw_demo.py

On an idle machine: what it says of seconds is true of this one. Needs tmux and DejaVu's
monospaced fonts, which matplotlib brings.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[2]
COMMAND = "-m examples.demo --clients 5 --attack wraparound --output demo-run"
COLUMNS, ROWS, SIZE, LINE, EDGE = 100, 40, 14, 17, 12
PAPER, INK, RULE, FAINT = "#1e1e1e", "#d4d4d4", "#5a5a5a", "#8a8a8a"
COLOURS = {31: "#e06c6c", 32: "#7fbf7f", 33: "#e5b567", 34: "#7aa6da", 36: "#6cc4c4"}
MIDDLE = re.compile(r"round .* 28/60")
DEADLINE_S = 600.0


def played(folder: Path) -> tuple[list[str], list[str]]:
    """The screen in mid-training and at the end, a line each, with colours as the terminal's."""
    tmux = ("tmux", "-L", f"demo-{folder.name}")
    path = f"PYTHONPATH={ROOT}/src:{ROOT}"
    run = f"PS1= {path} exec sh -c '{sys.executable} {COMMAND}; echo; sleep 60'"
    size = ("-x", str(COLUMNS), "-y", str(ROWS))
    subprocess.run([*tmux, "new-session", "-d", *size, run], cwd=folder, check=True)
    middle: list[str] = []
    try:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            seen = subprocess.run(
                [*tmux, "capture-pane", "-e", "-p"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.rstrip()
            plain = re.sub(r"\x1b\[[\d;]*m", "", seen)
            if not middle and MIDDLE.search(plain):
                middle = seen.splitlines()
            if "Files:" in plain:
                return middle, seen.splitlines()
            time.sleep(0.1)
        raise SystemExit(f"the demo didn't end within {DEADLINE_S:g} s:\n{plain}")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


def draw(screens: tuple[list[str], list[str]], path: Path) -> None:
    """Both, one under the other."""
    fonts = [
        ImageFont.truetype(
            f"{get_data_path()}/fonts/ttf/DejaVuSansMono{style}.ttf", SIZE
        )
        for style in ("", "-Bold")
    ]
    wide = round(fonts[0].getlength("m") * COLUMNS) + 2 * EDGE
    heights = [len(lines) * LINE + 2 * EDGE for lines in screens]
    image = Image.new("RGB", (wide, sum(heights) + EDGE // 2), PAPER)
    pen, top = ImageDraw.Draw(image), 0
    for lines, height in zip(screens, heights, strict=True):
        colour, bold = INK, False
        for number, line in enumerate(lines):
            x, y = float(EDGE), top + EDGE + number * LINE
            for part in re.split(r"(\x1b\[[\d;]*m)", line):
                if part.startswith("\x1b"):
                    for code in (int(each or 0) for each in part[2:-1].split(";")):
                        colour, bold = _after(code, colour, bold=bold)
                    continue
                pen.text((x, y), part, fill=colour, font=fonts[bold])
                x += fonts[bold].getlength(part)
        top += height
        if top < image.height - EDGE:
            pen.rectangle((0, top, wide, top + EDGE // 2), fill=RULE)
            top += EDGE // 2
    image.save(path, optimize=True)


def _after(code: int, colour: str, *, bold: bool) -> tuple[str, bool]:
    """The state of a terminal after a code of its colours."""
    match code:
        case 38 | 90:
            # Of 256 colours a bar's rest alone has one.
            return RULE, bold
        case 0:
            return INK, False
        case 1:
            return colour, True
        case 2:
            return FAINT, bold
        case 22:
            return colour, False
        case 39:
            return INK, bold
    return COLOURS.get(code, colour), bold


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        draw(played(Path(folder)), Path(__file__).parent / "demo.png")
