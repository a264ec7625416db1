"""Who tells the owner how its training goes, in a thread beside the one that trains.

Nothing here may show outside: not how long the owner's callback takes or that it
raises, not what its held-out records say. So all of it is done in this thread, waits
while an upload is due, and goes on for as long as it takes once the servers are left.
"""

import csv
import html
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Group

from precad.client.own_account import exact_epsilon
from precad.client.participation import (
    Observer,
    RoundInfo,
    TrainedModel,
    VersionOver,
)
from precad.common.files import PRIVATE_MODE
from precad.common.task import Task
from precad.common.terminal import Bar, plain, redraws, upper

if TYPE_CHECKING:
    from precad.client.gradients.evaluation import Evaluation

log = logging.getLogger("precad")
rounds_log = logging.getLogger("precad.rounds")
private = logging.getLogger("precad.private")

HISTORY_FILE = "history.csv"
_KINDS = 8
"""Different steps in an account that are added up after each round."""
OnRound = Callable[[RoundInfo], object]
Validate = Callable[[TrainedModel, Callable[[], object]], "Evaluation"]
"""A model on held-out records; calls its second argument often, which may wait."""


class Reporter(Observer):
    """An ``Observer`` that tells its owner; ``note`` keeps a line for the owner's eyes alone.

    Rounds stand in ``history.csv`` of ``folder``, where there is one.
    """

    def __init__(
        self,
        task: Task,
        *,
        epsilon_limit: float | None = None,
        on_round: OnRound | None = None,
        validate: Validate | None = None,
        folder: Path | None = None,
        display: "OwnerProgress | None" = None,
        note: Callable[[str], object] = private.debug,
    ) -> None:
        self._task = task
        self._note = note
        self._limit = epsilon_limit
        self._on_round = on_round
        self._validate = validate
        self._file = None if folder is None else folder / HISTORY_FILE
        self._display = display
        self._quiet = threading.Event()
        self._quiet.set()
        # With the newest model's version at that time; the models themselves may be
        # large.
        self._waiting: SimpleQueue[tuple[VersionOver, int | None] | None] = (
            SimpleQueue()
        )
        self.newest: TrainedModel | None = None
        """The newest model that both servers agreed on."""
        self._judged: tuple[TrainedModel, Evaluation] | None = None
        self._begun = False
        self._thread = threading.Thread(
            target=self._work,
            name="reporter",
            daemon=True,
        )
        self.history: list[RoundInfo] = []
        self.failures = 0
        self.first_failure: BaseException | None = None

    def __enter__(self) -> Self:
        if self._display is not None:
            self._display.start()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.free()
        self._waiting.put(None)
        self.doing("telling the last rounds")
        try:
            # Who is interrupted waits for nobody's callback.
            if kind is None or issubclass(kind, Exception):
                self._thread.join()
        finally:
            if self._display is not None:
                self._display.stop()
        if self.failures > 1:
            log.warning("on_round raised after %d rounds", self.failures)

    @property
    def validation(self) -> "Evaluation | None":
        """The newest model's, once everything is told."""
        return None if self._judged is None else self._judged[1]

    # --- from the thread that trains
    # -------------------------------------------------------

    def doing(self, what: str, until: float | None = None) -> None:
        """What happens now."""
        if self._display is not None:
            self._display.doing(what, until)

    def hold(self) -> None:
        """An upload is due: what is slow waits."""
        self._quiet.clear()

    def free(self) -> None:
        """No upload is due."""
        self._quiet.set()

    def saw(self, model: TrainedModel) -> None:
        """The newest model."""
        self.newest = model

    def over(self, ended: VersionOver) -> None:
        """A version is over."""
        self._waiting.put((ended, None if self.newest is None else self.newest.version))

    # --- in the thread beside it
    # -----------------------------------------------------------

    def _work(self) -> None:
        # SciPy takes a second to load: beside the enrolment, and not in a round.
        import precad.accounting.exact  # noqa: F401, PLC0415

        for ended, version in iter(self._waiting.get, None):
            self._quiet.wait()
            self._tell(ended, version)
        # The final model, which came after the last round's end.
        if self.newest is not None:
            self._judge(self.newest)

    def _tell(self, ended: VersionOver, version: int | None) -> None:
        newest = self.newest
        current = newest if newest is not None and newest.version == version else None
        info = RoundInfo(
            number=ended.version + 1,
            rounds=self._task.training.rounds,
            drawn=ended.drawn,
            counted=ended.counted,
            rejected=ended.rejected,
            epsilon=self._epsilon(ended),
            epsilon_limit=self._limit,
            seconds=ended.seconds,
            model=current,
            validation=None if current is None else self._judge(current),
        )
        # Not how well it does: logs may be seen by others than the owner.
        rounds_log.info("round %d of %d: %s", info.number, info.rounds, outcome(info))
        self.history.append(replace(info, model=None))
        self._write(info)
        if self._display is not None:
            self._display.round(info)
        self._quiet.wait()
        self._call(info)

    def _epsilon(self, ended: VersionOver) -> float | None:
        """Of an account over hundreds of tasks not after every round: adding up takes seconds."""
        skipped = ended.version % max(1, len(ended.spent) // _KINDS)
        return None if skipped else exact_epsilon(ended.spent, self._task.privacy.delta)

    def _judge(self, model: TrainedModel) -> "Evaluation | None":
        if self._validate is None:
            return None
        if self._judged is None or self._judged[0] is not model:
            try:
                self._judged = model, self._validate(model, self._quiet.wait)
            except Exception as error:  # noqa: BLE001 -- whatever a model does with a record
                # A model that a server chose may raise at some records alone: no log
                # says that.
                text = f"model {model.version}: held-out records can't be tried"
                self._note(f"{text} ({type(error).__name__}: {error})")
                return None
        return self._judged[1]

    def _call(self, info: RoundInfo) -> None:
        if self._on_round is None:
            return
        try:
            self._on_round(info)
        except BaseException as error:  # noqa: BLE001 -- an owner's code ends no training
            self.failures += 1
            private.debug("on_round", exc_info=True)
            if self.first_failure is None:
                self.first_failure = error
                # Its text may say something of records; it stands in the result.
                log.warning(
                    "on_round raised %s after round %d; the training goes on, and so do"
                    " its calls",
                    type(error).__name__,
                    info.number,
                )

    def _write(self, info: RoundInfo) -> None:
        if self._file is None:
            return
        row = {"task": str(self._task.digest)[:12], **info.to_row()}
        try:
            lines: list[str] = []
            if not self._begun and self._file.exists():
                lines = self._file.read_text(encoding="utf-8").splitlines()
            if lines and lines[-1].startswith(f"{row['task']},{info.number},"):
                return  # told before a restart
            with _to_append(self._file) as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                if not lines and not self._begun:
                    writer.writeheader()
                writer.writerow(row)
            self._begun = True
        except OSError as error:
            log.warning(
                "%s can't be written (%s); the training goes on", self._file, error
            )


def _to_append(path: Path) -> TextIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_MODE)
    return os.fdopen(descriptor, "a", encoding="utf-8", newline="")


def note_privately(path: Path | None, line: str) -> None:
    """Write what nobody but the owner may see: records that failed, and late work.

    Without a file, which this user alone can read, lines go to the logger
    ``precad.private`` at debug level. Never raises, and waits for no disk: both would
    show outside.
    """
    if path is None:
        private.debug("%s", line)
        return
    with suppress(OSError), _to_append(path) as file:
        file.write(f"{line}\n")


# --- what is shown
# -----------------------------------------------------------------------------

_NOTEBOOK_S = 1.0
_LONGEST = 100


def display_for(
    name: str, rounds: int, *, wanted: bool | None = None
) -> "OwnerProgress | None":
    """What fits where this process runs: unless ``wanted`` is False, one where somebody looks.

    That is in a notebook, or on a terminal that can redraw a line; else the log says
    each round.
    """
    if wanted is False or not somebody_looks():
        return None
    if _in_notebook():
        return NotebookDisplay(name, rounds)
    return TerminalDisplay(name, rounds, sys.stderr)


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
            return outcome(self.last)
        right = found.accuracy
        well = f"loss {found.loss:.4g}" if right is None else f"{right:.1%} right"
        return f"{outcome(self.last)}; {well} on own held-out records"


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
        self._thread = threading.Thread(
            target=self._redraw,
            name="progress",
            daemon=True,
        )

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
            f'<div><progress max="{self.rounds}" value="{self.done}" style="width:'
            f' 20em"></progress> {head}<br><span style="opacity:'
            f' 0.6">{activity}</span></div>'
        )

    def _redraw(self) -> None:
        from IPython.display import HTML  # noqa: PLC0415

        while not self._over.wait(_NOTEBOOK_S):
            self._handle.update(HTML(self.markup()))
        self._handle.update(HTML(self.markup()))


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
