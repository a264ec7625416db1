"""Progress for a person: a bar on a terminal or in a notebook, with what is waited for named."""

import html
import sys
import threading
import time
from typing import Any, TextIO

from rich.console import Group

from precad.client.participation import RoundInfo
from precad.common.terminal import Bar, plain, redraws, upper

_NOTEBOOK_S = 1.0
_LONGEST = 100


def display_for(name: str, rounds: int, *, wanted: bool | None = None) -> "OwnerProgress | None":
    """What fits where this process runs.

    Args:
        name: the owner's.
        rounds: T.
        wanted: False for none. Else there is one where somebody looks: in a notebook, or on a
            terminal that can redraw a line; anywhere else the log says each round.
    """
    if wanted is False:
        return None
    if _in_notebook():
        return NotebookDisplay(name, rounds)
    if redraws(sys.stderr):
        return TerminalDisplay(name, rounds, sys.stderr)
    return None


def somebody_looks() -> bool:
    """Whether ``display_for`` shows something by itself."""
    return _in_notebook() or redraws(sys.stderr)


class OwnerProgress:
    """What is to be seen of an owner's training at this moment; no call waits for anything."""

    def __init__(self, name: str, rounds: int) -> None:
        self.name = name
        self.rounds = rounds
        self.last: RoundInfo | None = None
        self._doing: tuple[str, float | None] = "starting", None

    def start(self) -> None:
        """Begin to show it."""

    def stop(self) -> None:
        """Show it no more."""

    def doing(self, what: str, until: float | None) -> None:
        """What happens now, and until when on the monotonic clock."""
        self._doing = what, until

    def round(self, info: RoundInfo) -> None:
        """A round is over."""
        self.last = info

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return 0 if self.last is None else self.last.number

    def activity(self) -> str:
        """With the seconds that are left."""
        what, until = self._doing
        if len(what) > _LONGEST:
            what = what[: _LONGEST - 1] + "…"
        left = None if until is None else until - time.monotonic()
        return what if left is None else f"{what}, {max(0, round(left))} s left"

    def result(self) -> str:
        """Of the last round."""
        if self.last is None:
            return ""
        found = self.last.validation
        if found is None:
            own = ""
        elif found.accuracy is None:
            own = f"; loss {found.loss:.4g} on own held-out records"
        else:
            own = f"; {found.accuracy:.1%} right on own held-out records"
        return f"{outcome(self.last)}{own}"


def outcome(info: RoundInfo) -> str:
    """What became of this owner's part, and what its records have spent, in a few words."""
    if info.counted:
        said = "counted"
    elif info.rejected:
        said = f"rejected ({info.rejected})"
    else:
        said = "sat out" if info.drawn else "not drawn"
    if info.epsilon is None:
        return said
    limit = "" if info.epsilon_limit is None else f" of {info.epsilon_limit:g}"
    return f"{said}; ε {upper(info.epsilon, 3)}{limit} spent"


class TerminalDisplay(OwnerProgress):
    """A bar and two lines that redraw themselves on a terminal, and go at the end."""

    def __init__(self, name: str, rounds: int, out: TextIO) -> None:
        super().__init__(name, rounds)
        self._bar = Bar(f"{name}: round", rounds, out, beneath=self._beneath)

    def start(self) -> None:
        """Begin; what others print goes above."""
        self._bar.start()

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def round(self, info: RoundInfo) -> None:
        """A round is over."""
        super().round(info)
        self._bar.at(self.done)

    def _beneath(self) -> Group:
        last = [plain(f"round {self.done}: {self.result()}")] if self.done else []
        return Group(*last, plain(self.activity(), "dim"))


class NotebookDisplay(OwnerProgress):
    """A bar in a notebook's output; needs no widgets."""

    def __init__(self, name: str, rounds: int) -> None:
        super().__init__(name, rounds)
        self._over = threading.Event()
        self._handle: Any = None
        self._thread = threading.Thread(target=self._redraw, name="progress", daemon=True)

    def start(self) -> None:
        """Begin."""
        from IPython.display import HTML, display  # noqa: PLC0415 -- a notebook has it

        self._handle = display(HTML(self.markup()), display_id=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the last state."""
        self._over.set()
        self._thread.join()

    def markup(self) -> str:
        """The output as HTML."""
        lines = (f"{self.name}: round {self.done}/{self.rounds}", self.result())
        head = " · ".join(html.escape(line) for line in lines if line)
        activity = "" if self._over.is_set() else html.escape(self.activity())
        return (
            f'<div><progress max="{self.rounds}" value="{self.done}" style="width: 20em">'
            f'</progress> {head}<br><span style="opacity: 0.6">{activity}</span></div>'
        )

    def _redraw(self) -> None:
        from IPython.display import HTML  # noqa: PLC0415

        while not self._over.wait(_NOTEBOOK_S):
            self._handle.update(HTML(self.markup()))
        self._handle.update(HTML(self.markup()))


def _in_notebook() -> bool:
    """Whether a Jupyter kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
