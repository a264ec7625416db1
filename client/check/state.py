"""The owner's own disk: can what has to survive be written there, and does nobody else use it?"""

import os
import shutil
import tempfile
from pathlib import Path

from precad.client.check.finding import Findings
from precad.client.lock import held
from precad.client.trained_model import MODEL_FILE
from precad.common.errors import PrecadError
from precad.common.model import load_model
from precad.common.ring import WORD_BYTES
from precad.common.task import Task

_VECTORS = 8
"""X and one share, each twice while a file is replaced; two models and a third on its way."""
_BESIDE = 2**20
"""Account, statements, logs."""
_MOST_TRIED = 2**28
"""More isn't reserved for a trial; the system's word is taken for it."""


def look_at_state(task: Task, folder: Path | None, account: Path | None) -> Findings:
    """Whether ``folder`` and ``account`` can be written, have room, and aren't in use."""
    findings = Findings()
    if folder is None:
        findings.note("state", "no state folder: what was spent is forgotten with this process")
        return findings
    needed = _VECTORS * WORD_BYTES * task.dimension + _BESIDE
    for path, size in ((folder, needed), (account, _BESIDE)):
        if path is not None and (fault := _no_room(path, size)):
            findings.bad("state", fault)
    if folder.is_dir() and not findings.wrong:
        findings.passes("state", lambda: _free(folder))
    if not findings.wrong:
        findings.good("state", f"{folder} can be written and has room for {needed / 1e6:.0f} MB")
    return findings


def final_model(task: Task, folder: Path) -> Path | None:
    """Where the task's final model lies, if this owner has it: the training is finished."""
    path = folder / MODEL_FILE
    try:
        model = load_model(path, task)
    except PrecadError:
        return None
    return path if model.version >= task.training.rounds else None


def _free(folder: Path) -> None:
    with held(folder):
        pass


def _no_room(path: Path, needed: int) -> str | None:
    """What is wrong, in a sentence. Nothing stays behind."""
    # The folder may not be there yet; then what it will be made in is looked at.
    there = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    remedy = f"make room for {needed / 1e6:.0f} MB, or name another folder"
    try:
        free = shutil.disk_usage(there).free
        if free < needed:
            return f"the disk of {path} is full ({free / 1e6:.1f} MB free): {remedy}"
        with tempfile.TemporaryFile(dir=there) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, min(needed, _MOST_TRIED))
    except OSError as error:
        return f"{path} can't be written ({error.strerror}): {remedy}"
    return None
