"""The commands that documents tell people to type, and what each needs that isn't here.

A block is fenced (``sh``, or no language) or indented by four blanks. In one marked
``sh`` every line is a command; in the others a line that begins with a program's name.
A mark of its own line before a block, ``<!-- needs: a container engine -->``, says why
no test types it; directly under a page's title, ``<!-- all commands need: … -->`` says
it of the whole page. What stands behind a command as a comment is to be in what it
prints, where the page's test checks that.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    *(
        "precad",
        "make",
        "docker",
        "docker-compose",
        "kubectl",
        "helm",
        "systemctl",
        "journalctl",
    ),
    *(
        "pip",
        "python",
        "python3",
        "python3.11",
        "flwr",
        "promtool",
        "sqlite3",
        "pg_dump",
        "psql",
    ),
    *(
        "chown",
        "chmod",
        "cp",
        "mv",
        "rm",
        "mkdir",
        "tar",
        "sha256sum",
        "git",
        "kill",
        "ulimit",
    ),
)
_MARK = re.compile(r"^<!-- (all commands need|needs): (.+) -->$")
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?$')
_WRITTEN = re.compile(
    r'^```toml title="(\w+) writes ([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL
)
_COMMENT, _BEFORE = re.compile(r"\s+# .*$"), re.compile(r"\s*$|#")


class Command(NamedTuple):
    page: str  # Relative to the repository
    line: int  # Where it stands, from 1
    text: str  # As it is typed; continued lines are one
    says: str  # What stands behind it as a comment
    title: str  # Of its block: who types it
    needs: str  # Why no test types it; empty for all others


class _Block(NamedTuple):
    language: str
    title: str
    needs: str
    lines: list[tuple[int, str]]


def commands(page: str) -> list[Command]:
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    whole = next((m[2] for m in map(_MARK.match, lines) if m and m[1] != "needs"), "")
    found = []
    for block in _blocks(lines):
        for number, text in _joined(block.lines):
            typed = _COMMENT.sub("", text).strip()
            word = (typed.split() or ["#"])[0]
            if word.startswith("#") or (
                block.language != "sh" and word not in PROGRAMS
            ):
                continue
            says = text.strip().removeprefix(typed).strip().removeprefix("# ")
            needs = block.needs or whole
            found.append(Command(page, number, typed, says, block.title, needs))
    return found


def typed(page: str) -> list[Command]:
    return [each for each in commands(page) if not each.needs]


def written(page: str) -> list[tuple[str, str, str]]:
    return _WRITTEN.findall((ROOT / page).read_text(encoding="utf-8"))


def pages() -> list[str]:
    found = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(str(path.relative_to(ROOT)) for path in found)]


def _blocks(lines: list[str]) -> Iterator[_Block]:
    mark, fence = "", None
    block: _Block | None = None
    for number, line in enumerate(lines, 1):
        if fence is None and (opened := _FENCE.match(line)):
            fence = _Block(opened[1], opened[2] or "", mark, [])
        elif fence is not None and line == "```":
            if fence.language in ("sh", ""):
                yield fence
            fence, mark = None, ""
        elif fence is not None:
            fence.lines.append((number, line))
        # An indented line begins a block where no paragraph goes on.
        elif line.startswith("    ") and (block or _BEFORE.match(lines[number - 2])):
            block = block or _Block("", "", mark, [])
            block.lines.append((number, line))
        elif line.strip():
            # Text: an indented block is over, and a mark holds for the block right
            # behind it.
            if block is not None:
                yield block
            marked = _MARK.match(line)
            block, mark = None, marked[2] if marked and marked[1] == "needs" else ""
    if block is not None:
        yield block


def _joined(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    at, begun = 0, ""
    for number, line in lines:
        at, text = (at, f"{begun} {line.strip()}") if begun else (number, line)
        begun = text[:-1].rstrip() if text.endswith("\\") else ""
        if not begun:
            yield at, text
