"""What an owner and its surroundings are looked at for before it enrols; a sentence each.

Its records, model, loss, claim and limit; its disk; both servers. What servers are
asked depends on settings and task, never on a record: two owners, one of whom has a bad
record, look alike.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from precad.client.connection import ServerState, ask_for_state
from precad.client.own_account import OwnAccount
from precad.client.participation import MODEL_FILE
from precad.client.records.columns import ColumnNotes
from precad.common.errors import Misconfiguration, PrecadError, one_line
from precad.common.files import state_lock
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import why_unreachable
from precad.common.identity.party_certificate import Principal
from precad.common.model import load_model
from precad.common.ring import WORD_BYTES
from precad.common.roster import Enrolment, most_records
from precad.common.task import Task

if TYPE_CHECKING:
    from precad.client.records.torch_records import Records

Value = TypeVar("Value")


class Kind(Enum):
    """What follows from a finding."""

    GOOD = "good"
    NOTE = "note"
    """Nothing stops taking part, but it may not go as the owner thinks."""
    BAD = "bad"
    """Taking part would fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    about: str
    """`data`, `server A`, …"""
    kind: Kind
    text: str
    """What is there; or what is wrong, and the remedy."""


class Findings(list[Finding]):
    """All of them, in the order in which they were made."""

    def attempt(self, about: str, make: Callable[[], Value]) -> Value | None:
        """What ``make`` gives; None, and a bad finding, where it raises one of our errors."""
        try:
            return make()
        except PrecadError as error:
            self.append(Finding(about, Kind.BAD, str(error)))
            return None

    def passes(self, about: str, check: Callable[[], object]) -> bool:
        """Whether ``check`` raises none of our errors; a bad finding where it does."""
        return self.attempt(about, lambda: (check(),)) is not None

    def good(self, about: str, text: str) -> None:
        """Nothing is wrong."""
        self.append(Finding(about, Kind.GOOD, text))

    def note(self, about: str, text: str) -> None:
        """Something to know."""
        self.append(Finding(about, Kind.NOTE, text))

    def bad(self, about: str, text: str) -> None:
        """Something to mend."""
        self.append(Finding(about, Kind.BAD, text))

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """What has to be mended."""
        return tuple(finding for finding in self if finding.kind is Kind.BAD)


_COLUMNS_SHOWN = 20
_MOST_SHARE = 0.01
"""Of the records: where more are filled or unlisted, the task may not fit this table.
"""

# --- the owner
# ---------------------------------------------------------------------------------


def look_at_owner(
    task: Task,
    client: ClientId,
    records: "Records",
    record_rate: float,
    *,
    model: Any,
    loss: Any,
    held_out: "Records | None" = None,
) -> Findings:
    """Every record with this model and this loss, and the claim that would be made.

    Of those that are kept for trying the models, ``held_out``, the same without a
    claim.
    """
    from precad.client.gradients.rehearsal import rehearse  # noqa: PLC0415 -- torch

    findings = Findings()
    shape = list(records.inputs.shape[1:])
    kind = str(records.inputs.dtype).removeprefix("torch.")
    claim = Enrolment(client, len(records), record_rate)
    most = most_records(len(records), record_rate)
    if findings.passes("data", lambda: claim.check(task)):
        findings.good("data", f"{len(records):,} records, each {kind}{shape}")
    if findings.passes(
        "model and loss",
        lambda: rehearse(
            model,
            loss,
            records,
            task,
            most,
        ),
    ):
        start = f'which start by model.initial = "{task.model.initial}"'
        text = f"take every record; {task.dimension:,} parameters, {start}"
        findings.good("model and loss", text)
        _look_at_pace(
            findings,
            task,
            records,
            record_rate,
            model=model,
            loss=loss,
        )
    if held_out is not None:
        about = "held-out records"
        if findings.passes(about, lambda: rehearse(model, loss, held_out, task)):
            findings.good(about, f"{len(held_out):,}, as good as the others")
    return findings


def look_at_columns(notes: Sequence[ColumnNotes]) -> Findings:
    """What became of a table's cells: a sentence for each column where it isn't what they say."""
    findings = Findings()
    said = [(note, text) for note in notes if (text := note.sentence())]
    for note, text in sorted(said, key=lambda each: -each[0].share)[:_COLUMNS_SHOWN]:
        if note.share > _MOST_SHARE or note.far:
            findings.note("data", f"{text}: is that meant?")
        else:
            findings.good("data", text)
    if notes and not said:
        findings.good(
            "data", f"no cell of {len(notes):,} columns is missing or unlisted"
        )
    elif len(said) > _COLUMNS_SHOWN:
        findings.note(
            "data", f"{len(said) - _COLUMNS_SHOWN:,} more columns have such cells"
        )
    return findings


def _look_at_pace(
    findings: Findings,
    task: Task,
    records: "Records",
    record_rate: float,
    *,
    model: Any,
    loss: Any,
) -> None:
    from precad.client.gradients.local_update import padded_work_s  # noqa: PLC0415 -- torch

    # The model has just run: what is loaded once is there.
    work_s = padded_work_s(
        model,
        loss,
        records,
        count=len(records),
        rate=record_rate,
        task=task,
        repeats=1,
    )
    wait_s = task.deadlines.work
    text = (
        f"a round's work takes {work_s:.2g} s here, and uploads begin after"
        f" {wait_s:g} s"
    )
    if work_s < wait_s:
        findings.good("pace", text)
    else:
        remedy = (
            "this owner's come late, whatever its records: let the task's"
            " deadlines.work be"
        )
        findings.note("pace", f"{text}: {remedy} {2 * work_s:.2g} or more")


def check_name(client: ClientId, identity: Identity) -> None:
    """The certificate must be this client's: servers believe it, and nothing else.

    Raises Misconfiguration: it is another party's.
    """
    if identity.principal != Principal.client(client.name):
        raise Misconfiguration(
            "client",
            client.name,
            f"the certificate in {identity.path} is {identity.principal}'s: mend the"
            " name, or name the folder of this client's own certificate",
        )


def look_at_limit(task: Task, account: OwnAccount) -> Findings:
    """How far the owner's limit goes."""
    findings = Findings()
    if account.limit is None:
        findings.note(
            "limit", "no epsilon_limit of your own: only the servers' limit holds"
        )
        return findings
    said, lasts = covered(task, account)
    if account.whole_task():
        findings.note(
            "limit",
            f"{said}, and goes to this task alone: these records take part in no other"
            f" under it; for that, an epsilon_limit of {account.ample():.2f} or more",
        )
    elif lasts:
        findings.good("limit", said)
    else:
        findings.note("limit", f"{said}: raise epsilon_limit to take part to the end")
    return findings


def covered(task: Task, account: OwnAccount) -> tuple[str, bool]:
    """How many of the task's rounds the owner's limit covers, and whether that is all of them."""
    if account.limit is None:
        return "no limit of your own", True
    drawn = account.planned()
    rounds = task.training.rounds
    taken = account.participations
    left = account.rounds_left(rounds - taken)
    of = f"the task's {rounds:,} rounds"
    if drawn < rounds:
        of = f"at most {drawn:,} rounds that it draws an owner for, of {rounds:,}"
    more = f"{left:,} more, after {taken:,}," if taken else f"{left:,}"
    return f"ε = {account.limit.epsilon:g} allows {more} of {of}", left >= drawn - taken


# --- both servers
# ------------------------------------------------------------------------------

WITHIN_S = 4.0
"""For all of it, both servers at once, a name's look-up included."""
_LONGEST = 300
"""Letters of a server's own words that are shown."""
SKEW_S = 60.0
"""Clocks that are further apart are worth a word: certificates last by them."""


def look_at_servers(
    task: Task | None,
    client: ClientId,
    identity: Identity,
    addresses: Mapping[Role, str],
    within_s: float = WITHIN_S,
    token: Secret | None = None,
) -> Callable[[], Findings]:
    """Begin to look at both servers, each in a thread of its own.

    What comes back waits for the servers, ``within_s`` for all of it, and gives what
    was found. Without ``task``, which couldn't be read, theirs isn't compared. The
    servers look at ``token``, which stays unused.
    """
    until = time.monotonic() + within_s
    answers: dict[Role, Future[tuple[ServerState, float]]] = {
        role: Future() for role in addresses
    }

    def left() -> float:
        return max(0.0, until - time.monotonic())

    def look(role: Role, address: str) -> None:
        try:
            fault = why_unreachable(address, identity, role)
            if fault is not None:
                raise fault
            began = time.time()
            state = ask_for_state(
                task,
                identity,
                role,
                address,
                left(),
                token,
            )
            # And how far its clock is ahead of this machine's.
            answers[role].set_result((state, state.clock_s - (began + time.time()) / 2))
        except BaseException as error:  # noqa: BLE001 -- raised again where it is asked for
            answers[role].set_exception(error)

    for role, address in addresses.items():
        # No pool: its threads would keep a process from ending that waits no longer.
        Thread(
            target=look,
            args=(role, address),
            name=f"look-{role.value}",
            daemon=True,
        ).start()

    def found() -> Findings:
        findings = Findings()
        ahead = {}
        for role, address in addresses.items():
            about = role.title
            try:
                state, ahead[role] = answers[role].result(left())
            except TimeoutError:  # a name's look-up, or a handshake
                text = (
                    f"{about} at {address} didn't answer within {within_s:g} s;"
                    " check its"
                )
                findings.bad(about, f"{text} address, and the network between")
            except PrecadError as error:
                findings.bad(about, str(error))
            else:
                findings.append(
                    _standing(
                        about=about,
                        address=address,
                        client=client,
                        reply=state,
                    )
                )
        findings.extend(_clocks(ahead))
        return findings

    return found


def _standing(
    *,
    about: str,
    address: str,
    client: ClientId,
    reply: ServerState,
) -> Finding:
    kind = Kind.BAD
    why = one_line(reply.refusal[:_LONGEST])
    if reply.finished and reply.enrolled:
        kind = Kind.NOTE
        text = f"the training at {address} is finished: nothing is left to take part"
        text += (
            " in, and precad join fetches its final model as long as the servers are"
            " there"
        )
    elif reply.finished:
        text = (
            f"the training at {address} is finished, without client {client}: ask the"
            " operator"
        )
        text += " for the next task"
    elif reply.present:
        text = (
            f"another process takes part as client {client} now: end one of the two, or"
            " ask the"
        )
        text += " operator for a certificate with a name of its own"
    elif not reply.enrolling and not reply.enrolled:
        text = (
            f"enrolment at {address} is over and client {client} isn't enrolled: it is"
            " too late"
        )
        text += " for this task; ask the operator for the next"
    elif reply.refusal:
        text = f"{about} at {address} wouldn't enrol this client: {why}"
    else:
        where = "this client is enrolled" if reply.enrolled else "enrolment is open"
        kind = Kind.GOOD
        text = f"answers at {address} with the same task; {where}"
    return Finding(about, kind, text)


def _clocks(ahead: Mapping[Role, float]) -> Findings:
    findings = Findings()
    off = {role: seconds for role, seconds in ahead.items() if abs(seconds) > SKEW_S}
    judged = "certificates are judged by it"
    if len(off) == len(ahead) and len({seconds > 0 for seconds in off.values()}) == 1:
        of_this = _apart(-min(off.values(), key=abs))
        findings.bad(
            "clock", f"this machine's clock is {of_this} the servers': set it, {judged}"
        )
    else:
        for role, seconds in off.items():
            text = f"the clock of {role.title} is {_apart(seconds)} this machine's"
            findings.bad("clock", f"{text}: tell its operator, {judged}")
    if ahead and not off:
        findings.good("clock", "agrees with the servers' to a minute")
    return findings


def _apart(seconds: float) -> str:
    word = "ahead of" if seconds > 0 else "behind"
    return f"{timedelta(seconds=round(abs(seconds)))} h {word}"


# --- the disk
# ----------------------------------------------------------------------------------

_VECTORS = 8
"""X and one share, each twice while a file is replaced; two models and a third on its
way."""
_BESIDE = 2**20
"""Account, statements, logs."""
_MOST_TRIED = 2**28
"""More isn't reserved for a trial; the system's word is taken for it."""


def look_at_state(task: Task, folder: Path | None, account: Path | None) -> Findings:
    """Whether ``folder`` and ``account`` can be written, have room, and aren't in use."""
    findings = Findings()
    if folder is None:
        findings.note(
            "state", "no state folder: what was spent is forgotten with this process"
        )
        return findings
    needed = _VECTORS * WORD_BYTES * task.dimension + _BESIDE
    for path, size in ((folder, needed), (account, _BESIDE)):
        if path is not None and (fault := _no_room(path, size)):
            findings.bad("state", fault)
    if folder.is_dir() and not findings.wrong:
        findings.passes("state", lambda: _free(folder))
    if not findings.wrong:
        findings.good(
            "state", f"{folder} can be written and has room for {needed / 1e6:.0f} MB"
        )
    return findings


def final_model(task: Task, folder: Path | None) -> Path | None:
    """Where the task's final model lies, if this owner has it: the training is finished."""
    if folder is None:
        return None
    path = folder / MODEL_FILE
    try:
        model = load_model(path, task)
    except PrecadError:
        return None
    return path if model.version >= task.training.rounds else None


def _free(folder: Path) -> None:
    with state_lock(folder):
        pass


def _no_room(path: Path, needed: int) -> str | None:
    """What is wrong, in a sentence. Nothing stays behind."""
    # The folder may not be there yet; then what it will be made in is looked at.
    there = next(
        each for each in (path.absolute(), *path.absolute().parents) if each.exists()
    )
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
