"""Tells the owner how its training goes, in a thread beside the one that trains.

Nothing here may show outside: not how long the owner's callback takes or that it
raises, nor what its held-out records say. So all of it is done in a thread of its own.
It waits while an upload is due, and goes on for as long as it takes once the servers
are left.
"""

import csv
import html
import logging
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

from precad.accounting import exact_epsilon
from precad.client.data_set_account import at_owners_of
from precad.client.participation import (
    Observer,
    RoundInfo,
    TrainedModel,
    VersionOver,
)
from precad.common import (
    Bar,
    Rejection,
    Task,
    log,
    plain,
    redraws,
    start_thread,
    to_append,
    upper,
)

if TYPE_CHECKING:
    from precad.client.gradients import Evaluation

rounds_log = logging.getLogger("precad.rounds")
private = logging.getLogger("precad.private")

HISTORY_FILE = "history.csv"
"""Name of the file in the owner's state folder."""
_KINDS_EACH_ROUND = 8
"""Kinds of steps on an account up to which its ε is added up after every round."""
OnRound = Callable[[RoundInfo], object]
"""What an owner wants to be called after each round."""
Validate = Callable[[TrainedModel, Callable[[], object]], "Evaluation"]
"""Tries a model on held-out records. It calls its second argument often, which may
wait."""


class Reporter(Observer):
    """Tells an owner each round, while its ``with`` block trains.

    Args:
        task: the training's task.
        epsilon_limit: the owner's own limit, as it is shown.
        on_round: is called after each round.
        validate: tries the newest model on the owner's held-out records.
        folder: gets the rounds in ``history.csv``; nothing is written without it.
        display: shows the training's progress.
        note: keeps a line for the owner's eyes alone.
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
        """Keep what the ``with`` block's thread needs."""
        self._task = task
        self._note = note
        self._limit = epsilon_limit
        self._on_round = on_round
        self._validate = validate
        self._file = None if folder is None else folder / HISTORY_FILE
        self._display = display or OwnerProgress("", 0)
        self._no_upload_due = threading.Event()
        self._no_upload_due.set()
        self._untold: SimpleQueue[tuple[VersionOver, int | None] | None] = SimpleQueue()
        """Rounds that are over, each with the version of the newest model at that time:
        the models themselves may be large. None ends the thread."""
        self.newest: TrainedModel | None = None
        """The newest model that both servers agreed on."""
        self._tried: TrainedModel | None = None
        """The last model that was tried on the held-out records."""
        self.validation: Evaluation | None = None
        """It on the held-out records: the newest model once everything is told."""
        self.history: list[RoundInfo] = []
        """All rounds that were told, without their models."""
        self.failures = 0
        """How often ``on_round`` raised."""
        self.first_failure: BaseException | None = None
        """What ``on_round`` raised first."""

    def __enter__(self) -> Self:
        self._display.start()
        self._thread = start_thread("reporter", self._work)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.free()
        self._untold.put(None)
        self.doing("telling the last rounds")
        try:
            # Who is interrupted waits for nobody's callback.
            if kind is None or issubclass(kind, Exception):
                self._thread.join()
        finally:
            self._display.stop()
        if self.failures > 1:
            log.warning("on_round raised after %d rounds", self.failures)

    # --- called by the thread that trains

    def doing(self, activity: str, until: float | None = None) -> None:
        """Show what happens now."""
        self._display.doing(activity, until)

    def hold(self) -> None:
        """Let what is slow wait: an upload is due."""
        self._no_upload_due.clear()

    def free(self) -> None:
        """Let what is slow go on: no upload is due."""
        self._no_upload_due.set()

    def saw(self, model: TrainedModel) -> None:
        """Keep the newest model."""
        self.newest = model

    def over(self, ended: VersionOver) -> None:
        """Hand the end of a version over to the other thread."""
        self._untold.put((ended, None if self.newest is None else self.newest.version))

    # --- called by the thread beside it

    def _work(self) -> None:
        """Tell all rounds as they end, and try the final model at last."""
        # SciPy takes a second to load: beside the enrolment, and not in a round.
        import precad.accounting.exact  # noqa: F401, PLC0415

        for ended, newest_version in iter(self._untold.get, None):
            self._no_upload_due.wait()
            self._tell(ended, newest_version)
        # The final model, which came after the last round's end.
        if self.newest is not None:
            self._evaluation(self.newest)

    def _tell(self, ended: VersionOver, newest_version: int | None) -> None:
        """Tell a round: to the log, the history, the display and the owner's callback.

        Its model is left out where a newer one than ``newest_version`` has come since.
        """
        model = self.newest
        if model is not None and model.version != newest_version:
            model = None
        epsilon = self._epsilon(ended)
        at_owners = ""
        if epsilon is not None:
            at_owners = at_owners_of(ended.spent, self._task.privacy.delta)
        info = RoundInfo(
            number=ended.version + 1,
            rounds=self._task.mechanism.releases,
            drawn=ended.drawn,
            counted=ended.counted,
            rejected=ended.rejected,
            epsilon=epsilon,
            at_owners=at_owners,
            epsilon_limit=self._limit,
            seconds=ended.seconds,
            model=model,
            validation=None if model is None else self._evaluation(model),
        )
        # Not how well it does: logs may be seen by others than the owner.
        submission = f", submission {ended.submission}" if ended.submission else ""
        rounds_log.info(
            "round %d of %d: %s; version %d, attempt %d%s",
            info.number,
            info.rounds,
            outcome(info),
            ended.version,
            ended.attempt,
            submission,
            extra={
                "version": ended.version,
                "attempt": ended.attempt,
                "submission": ended.submission,
            },
        )
        self.history.append(replace(info, model=None))
        self._write(info)
        self._display.round(info)
        self._no_upload_due.wait()
        self._call_on_round(info)

    def _epsilon(self, ended: VersionOver) -> float | None:
        """Return the records' exact ε so far; None in rounds that leave it out.

        For an account over hundreds of tasks it isn't added up after every round: that
        takes seconds.
        """
        every = max(1, len(ended.spent) // _KINDS_EACH_ROUND)
        if ended.version % every:
            return None
        return exact_epsilon(ended.spent, self._task.privacy.delta)

    def _evaluation(self, model: TrainedModel) -> "Evaluation | None":
        """Return ``model`` on the held-out records, each model tried once.

        None without such records, or where the model can't be tried on them.
        """
        if self._validate is None:
            return None
        if self._tried is not model:
            try:
                self.validation = self._validate(model, self._no_upload_due.wait)
            except Exception as error:  # noqa: BLE001 -- the model's, whatever it is
                # A model that a server chose may raise at some records alone: no log
                # says that.
                self._note(
                    f"model {model.version}: held-out records can't be tried"
                    f" ({type(error).__name__}: {error})"
                )
                return None
            self._tried = model
        return self.validation

    def _call_on_round(self, info: RoundInfo) -> None:
        """Call the owner's callback; what it raises is counted and ends no training."""
        if self._on_round is None:
            return
        try:
            self._on_round(info)
        except BaseException as error:  # noqa: BLE001 -- the owner's own code
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
        """Append a round to ``history.csv``, once: not again after a restart.

        Where the disk fails the training goes on.
        """
        path = self._file
        if path is None:
            return
        row = {"task": str(self._task.digest)[:12], **info.to_row()}
        try:
            lines = (
                path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            )
            if lines and lines[-1].startswith(f"{row['task']},{info.number},"):
                return  # told before a restart
            with to_append(path) as file:
                writer = csv.DictWriter(file, list(row), lineterminator="\n")
                if not lines:
                    writer.writeheader()
                writer.writerow(row)
        except OSError as error:
            log.warning("%s can't be written (%s); the training goes on", path, error)


def rounds_missed(history: Path, planned: int) -> int:
    """Return in how many of ``planned`` rounds an owner was absent, or away.

    ``history`` is its ``history.csv``. Its other rounds have a row in which it counted,
    was rejected, or wasn't drawn; one that ended while it was away has none. 0 without
    the file, which nothing follows from.
    """
    if not history.is_file():
        return 0
    with history.open(encoding="utf-8", newline="") as file:
        taken_part = sum(
            1
            for row in csv.DictReader(file)
            if row["counted"] == "True"
            or row["drawn"] == "False"
            or row["rejected"] not in ("", Rejection.ABSENT.value)
        )
    return planned - taken_part


def note_privately(path: Path | None, line: str) -> None:
    """Append a line that nobody but the owner may see: on failed records or late work.

    The file ``path`` can be read by this user alone. Without it lines go to the logger
    ``precad.private`` at debug level. This never raises, and waits for no disk: both
    would show outside.
    """
    if path is None:
        private.debug("%s", line)
        return
    with suppress(OSError), to_append(path) as file:
        file.write(f"{line}\n")


# --- what is shown

_NOTEBOOK_S = 1.0
"""Seconds between two redraws in a notebook."""
_LONGEST = 100
"""Letters of what happens now that are shown."""


def display_for(
    name: str, rounds: int, *, wanted: bool | None = None
) -> "OwnerProgress | None":
    """Return the display that fits where this process runs; None where none does.

    One fits in a notebook, and on a terminal that can redraw a line. Elsewhere, or if
    ``wanted`` is False, the log says each round.
    """
    if wanted is False or not somebody_looks():
        return None
    if _in_notebook():
        return NotebookDisplay(name, rounds)
    return TerminalDisplay(name, rounds, sys.stderr)


def somebody_looks() -> bool:
    """Return whether ``display_for`` shows something by itself."""
    return _in_notebook() or redraws(sys.stderr)


class OwnerProgress:
    """What is to be seen of an owner's training at this moment.

    No call waits for anything.
    """

    def __init__(self, name: str, rounds: int) -> None:
        self.name = name
        """The client's."""
        self.rounds = rounds
        """T."""
        self.last: RoundInfo | None = None
        """The last round that is over."""
        self._doing: tuple[str, float | None] = "starting", None
        """What happens now, and until when. One value: another thread reads it."""

    def start(self) -> None:
        """Begin to show it."""

    def stop(self) -> None:
        """Show it no more."""

    def doing(self, activity: str, until: float | None) -> None:
        """Keep what happens now, and until when on the monotonic clock."""
        self._doing = activity, until

    def round(self, info: RoundInfo) -> None:
        """Keep a round that is over."""
        self.last = info

    @property
    def done(self) -> int:
        """Rounds that are over."""
        return 0 if self.last is None else self.last.number

    def activity(self) -> str:
        """Return what happens now, with the seconds that are left for it."""
        text, until = self._doing
        if len(text) > _LONGEST:
            text = text[: _LONGEST - 1] + "…"
        if until is None:
            return text
        left_s = max(0, round(until - time.monotonic()))
        return f"{text}, {left_s} s left"

    def result(self) -> str:
        """Return what came of the last round; empty before the first one is over."""
        if self.last is None:
            return ""
        validation = self.last.validation
        if validation is None:
            return outcome(self.last)
        return f"{outcome(self.last)}; {validation.quality} on own held-out records"


def outcome(info: RoundInfo) -> str:
    """Return in a few words what became of this owner's part in a round.

    What its records have spent follows, where that was added up.
    """
    if info.counted:
        part = "counted"
    elif info.rejected:
        part = f"rejected ({info.rejected})"
    else:
        part = "sat out" if info.drawn else "not drawn"
    if info.epsilon is None:
        return part
    limit = "" if info.epsilon_limit is None else f" of {info.epsilon_limit:g}"
    return f"{part}; ε {upper(info.epsilon, 3)}{info.at_owners}{limit} spent"


class TerminalDisplay(OwnerProgress):
    """A bar and two lines that redraw themselves on a terminal, and go at the end."""

    def __init__(self, name: str, rounds: int, out: TextIO) -> None:
        super().__init__(name, rounds)
        self._bar = Bar(f"{name}: round", rounds, out, beneath=self._beneath)

    def start(self) -> None:
        """Begin to draw; what others print goes above."""
        self._bar.start()

    def stop(self) -> None:
        """Leave the terminal as it was."""
        self._bar.stop()

    def round(self, info: RoundInfo) -> None:
        """Keep a round that is over, and move the bar."""
        super().round(info)
        self._bar.at(self.done)

    def _beneath(self) -> Group:
        """Return the lines beneath the bar: the last round, and what happens now."""
        last = [plain(f"round {self.done}: {self.result()}")] if self.done else []
        return Group(*last, plain(self.activity(), "dim"))


NotebookOutput = Any
"""IPython's handle of one output, which can be updated; IPython has no types."""


class NotebookDisplay(OwnerProgress):
    """A bar in a notebook's output; needs no widgets."""

    def __init__(self, name: str, rounds: int) -> None:
        super().__init__(name, rounds)
        self._over = threading.Event()
        self._output: NotebookOutput = None

    def start(self) -> None:
        """Show the bar, and begin to redraw it."""
        from IPython.display import HTML, display  # noqa: PLC0415 -- a notebook has it

        self._output = display(HTML(self.markup()), display_id=True)
        self._thread = start_thread("progress", self._redraw)

    def stop(self) -> None:
        """Draw the last state, and leave it there."""
        self._over.set()
        self._thread.join()

    def markup(self) -> str:
        """Return the output as HTML."""
        texts = (f"{self.name}: round {self.done}/{self.rounds}", self.result())
        head = " · ".join(html.escape(text) for text in texts if text)
        activity = "" if self._over.is_set() else html.escape(self.activity())
        return (
            f'<div><progress max="{self.rounds}" value="{self.done}" style="width:'
            f' 20em"></progress> {head}<br><span style="opacity:'
            f' 0.6">{activity}</span></div>'
        )

    def _redraw(self) -> None:
        from IPython.display import HTML  # noqa: PLC0415

        over = False
        while not over:
            over = self._over.wait(_NOTEBOOK_S)
            self._output.update(HTML(self.markup()))


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
