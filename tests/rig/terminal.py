"""A terminal in memory: what was written to it, and what somebody sees on it."""

import io
import re

_PARTS = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Its lines now, without spaces at their ends; empty ones at the end are left out."""
        lines, row, column = [""], 0, 0
        for count, code, control, text in _PARTS.findall(self.getvalue()):
            if text:
                line = lines[row].ljust(column)
                lines[row] = line[:column] + text + line[column + len(text) :]
                column += len(text)
            elif control == "\r":
                column = 0
            elif control == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif code == "A":
                row -= int(count or 1)
                assert row >= 0, "above what is its own"
            elif code == "K":
                lines[row] = "" if count == "2" else lines[row][:column]
            elif code == "J":
                lines = [*lines[:row], lines[row][:column]]
            else:
                assert code in "mhl", code
        return [line.rstrip() for line in "\n".join(lines).rstrip().split("\n")]
