"""Owners of one machine, started together: what they load is loaded once, and shared in memory.

Each still is a process of its own: it is split off before any record, key or connection is there,
so the owners share nothing but code.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from precad.common.errors import Misconfiguration, PrecadError

_AHEAD_ROUNDS, _AHEAD_RATES = 100, 2
"""Added up before owners start: half a second of one rate at most."""


def split(settings: list[Path], load: Callable[[], object], logs: Path | None) -> Path | None:
    """One child process for each settings file.

    Args:
        settings: of the owners.
        load: imports what they need, before they are split off; starts no thread.
        logs: a folder; each child's output goes to a file there, named like its settings file.

    Returns:
        In a child its settings file. In this process None, when all children have ended well.

    Raises:
        Misconfiguration: this system can't split processes.
        SystemExit: in this process, with the status of the first child that didn't end well.
    """
    if sys.platform == "win32":
        raise Misconfiguration(
            "--config", len(settings), "this system starts owners one by one: give one file"
        )
    load()
    # What is there now is searched for cycles no more: so the children go on sharing its memory.
    gc.collect()
    gc.freeze()
    # A signal that comes while children are split off is for all of them.
    forwarded = {signal.SIGTERM, signal.SIGINT}
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, forwarded)
    children = []
    for each in settings:
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, usual)
            if logs is not None:
                _write_to(logs / f"{each.stem}.log")
            return each
        children.append(pid)

    def forward(number: int, _frame: object) -> None:
        for pid in children:
            # One that has just been waited for may still be among them.
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    for number in forwarded:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_SETMASK, usual)
    failed = 0
    while children:
        pid, ended = os.wait()
        # Before another signal comes: the number may be another process's by then.
        children.remove(pid)
        failed = failed or os.waitstatus_to_exitcode(ended)
    if failed:
        raise SystemExit(1 if failed < 0 else failed)
    return None


def load_for(settings: list[Path]) -> None:
    """What owners with these settings need, and what their accounts say after each round.

    The same few rates and one task: each owner would add them up again, after every round. An
    account that holds other tasks too is added up as it grows.
    """
    load_owner()
    from precad.client.own_account import OwnAccount  # noqa: PLC0415
    from precad.client.owner_settings import JoinSettings  # noqa: PLC0415
    from precad.common.roster import on_grid  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415

    terms: dict[tuple[Path, float | None], None] = {}
    for path in settings:
        # What is wrong with an owner's settings is for its own process to say.
        with suppress(PrecadError):
            own = JoinSettings.load(path)
            terms[own.task, own.record_rate] = None
    for path, rate in list(terms)[:_AHEAD_RATES]:
        with suppress(PrecadError):
            task = Task.load(path)
            wanted = task.privacy.record_rate if rate is None else rate
            OwnAccount(task, on_grid(task, wanted), None, None).add_up_ahead(_AHEAD_ROUNDS)


def load_owner() -> None:
    """Everything that an owner's training and its account need, a first gradient included."""
    import numpy as np  # noqa: PLC0415 -- whoever starts one owner loads as it goes
    from torch import nn  # noqa: PLC0415
    from torch.nn import functional  # noqa: PLC0415

    import precad.accounting.exact  # noqa: PLC0415
    import precad.client.data_owner  # noqa: PLC0415
    import precad.client.owner_settings  # noqa: F401, PLC0415
    from precad.client.gradients.record_gradients import RecordGradients  # noqa: PLC0415
    from precad.client.records.torch_records import as_records  # noqa: PLC0415
    from precad.common.task_schema import Parameter  # noqa: PLC0415

    # torch imports half of itself at the first gradient.
    parameters = (Parameter(name="weight", shape=(2, 1)), Parameter(name="bias", shape=(2,)))
    gradients = RecordGradients(nn.Linear(1, 2), functional.cross_entropy, parameters, chunk=1)
    records = as_records((np.ones((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)))
    list(gradients.chunks(records, np.zeros(1, dtype=np.int64), np.zeros(4)))


def _write_to(log: Path) -> None:
    """This process's output goes to the end of ``log`` from now on."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
