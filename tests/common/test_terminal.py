"""Text, tables and bars: for a terminal, and plain where nobody's terminal is."""

import io
import math

import pytest
from tests.rig.terminal import Terminal

from precad.common.terminal import Bar, Table, say, upper

HOSTILE = "\x1b[2J\x1b]0;title\x07a\rb\u202e[bold]c[/bold]"
PLAIN = "[2J]0;titleab[bold]c[/bold]"


def test_nothing_of_a_text_is_a_control_or_markup() -> None:
    for out in (io.StringIO(), Terminal()):
        say(out, HOSTILE, (HOSTILE, "bold"))
        table = Table("what", title=HOSTILE)
        table.add(HOSTILE)
        table.show(out)
        with Bar("x", 3, out) as bar:
            bar.at(1, HOSTILE)
        assert not set("\x07\u202e") & set(out.getvalue())
        assert "\x1b[2J" not in out.getvalue()
        assert PLAIN in out.getvalue()


def test_a_file_gets_unbroken_lines_without_colours_or_spaces_at_their_ends() -> None:
    out, table = io.StringIO(), Table("who", ">ε", "what")
    say(out, "word " * 60, style="red")
    table.add("a", "1.5", "x" * 200)
    table.add("bcd", "10")
    table.show(out)
    rows = ["who    ε  what", f"a    1.5  {'x' * 200}", "bcd   10"]
    assert out.getvalue().splitlines() == ["word " * 60, *rows]


@pytest.mark.parametrize(
    ("bound", "digits", "said"),
    [
        (0.9320001, 3, "0.933"),
        (0.932, 3, "0.932"),  # though the float lies above the decimal
        (3.0, 3, "3"),
        (1732.2, 3, "1.74e+03"),
        (2.5e-7, 2, "2.5e-07"),
        (9.9999, 3, "10"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_a_bound_is_never_shown_below_its_value(bound: float, digits: int, said: str) -> None:
    assert upper(bound, digits) == said
    assert float(said) >= bound
