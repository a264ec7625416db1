"""What an owner checks before it enrols; each finding is a sentence.

Looked at are its records, model, loss, claim and limit, its disk, and both servers.
What the servers are asked depends on settings and task, never on a record: two owners
of whom one has a bad record look alike from outside.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from precad.client.class_shares import unlike_weights
from precad.client.own_account import OwnAccount
from precad.client.participation import MODEL_FILE
from precad.client.records import ColumnNotes
from precad.client.server_state import ServerState, ask_for_state
from precad.client.server_statements import MODELS
from precad.common import (
    WORD_BYTES,
    ClientId,
    Enrolment,
    Misconfiguration,
    PrecadError,
    Role,
    Secret,
    Task,
    continued,
    frozen_dataclass,
    load_model,
    most_records,
    one_line,
    start_thread,
    state_lock,
    unlike_plan,
)
from precad.common.identity import Identity, Principal, why_unreachable

if TYPE_CHECKING:
    from torch import nn

    from precad.client.gradients import Loss
    from precad.client.records import Records

Value = TypeVar("Value")


class Kind(Enum):
    """What follows from a finding."""

    GOOD = "good"
    """Nothing has to be done."""
    NOTE = "note"
    """Nothing stops taking part, but it may not go as the owner thinks."""
    BAD = "bad"
    """Taking part would fail."""


@frozen_dataclass
class Finding:
    """One thing that was looked at, and what came of it."""

    about: str
    """What was looked at: `data`, `server A`, …"""
    kind: Kind
    text: str
    """What is there; or what is wrong, and the remedy."""


class Findings(list[Finding]):
    """All findings, in the order in which they were made."""

    def attempt(self, about: str, make: Callable[[], Value]) -> Value | None:
        """Return what ``make`` returns.

        Where ``make`` raises one of precad's errors, a bad finding with its text is
        added and None is returned.
        """
        try:
            return make()
        except PrecadError as error:
            self.bad(about, str(error))
            return None

    def passes(self, about: str, check: Callable[[], object]) -> bool:
        """Return whether ``check`` raises none of precad's errors.

        Where it raises one, a bad finding with its text is added.
        """
        return self.attempt(about, lambda: (check(), True)) is not None

    def good(self, about: str, text: str) -> None:
        """Add that nothing is wrong."""
        self.append(Finding(about, Kind.GOOD, text))

    def note(self, about: str, text: str) -> None:
        """Add something that the owner should know."""
        self.append(Finding(about, Kind.NOTE, text))

    def bad(self, about: str, text: str) -> None:
        """Add something that the owner must mend."""
        self.append(Finding(about, Kind.BAD, text))

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that have to be mended."""
        return tuple(finding for finding in self if finding.kind is Kind.BAD)


_COLUMNS_SHOWN = 20
"""Columns of a table that are told one by one."""
_MOST_SHARE = 0.01
"""Share of the records: where more cells of a column are filled or unlisted, the task
may not fit this table."""

# --- the owner


def look_at_owner(
    task: Task,
    client: ClientId,
    records: "Records",
    record_rate: float,
    *,
    model: "nn.Module",
    loss: "Loss",
    held_out: "Records | None" = None,
) -> Findings:
    """Try every record with the model and the loss, and the claim that would be made.

    ``record_rate`` is p_i. ``held_out``, the records that are kept for trying the
    models, are tried in the same way; no claim is made for them.
    """
    # Both load torch, which takes seconds.
    from precad.client.gradients import padded_work_s, rehearse  # noqa: PLC0415

    findings = Findings()
    dtype = str(records.inputs.dtype).removeprefix("torch.")
    claim = Enrolment(client, records.unit_count, record_rate)
    most_sampled = most_records(claim.records, record_rate)
    of_units = ""
    if records.units is not None:
        of_units = f" of {claim.records:,} {task.mechanism.unit.plural}"
    if findings.passes("data", lambda: claim.check(task)):
        findings.good(
            "data",
            f"{len(records):,} records{of_units}, each"
            f" {dtype}{list(records.inputs.shape[1:])}",
        )
    targets = records.targets
    if len(targets) > 1 and not (targets != targets[0]).any():
        findings.note(
            "data",
            f"all {len(targets):,} records have the same {task.target.name}: is that"
            " meant?",
        )
    if findings.passes(
        "model and loss", lambda: rehearse(model, loss, records, task, most_sampled)
    ):
        findings.good(
            "model and loss",
            f"take every record; {task.dimension:,} parameters, which start by"
            f' model.initial = "{task.model.initial}"',
        )
        work_s = padded_work_s(
            model,
            loss,
            records,
            count=claim.records,
            rate=record_rate,
            task=task,
            repeats=1,
        )
        findings.append(_pace(work_s, task.deadlines.work))
    for unlike in (
        unlike_plan(task, claim.records, record_rate),
        unlike_weights(task, targets.numpy()),
    ):
        if unlike:
            findings.note("data", unlike)
    if held_out is not None:
        about = "held-out records"
        if findings.passes(about, lambda: rehearse(model, loss, held_out, task)):
            findings.good(about, f"{len(held_out):,}, as good as the others")
    return findings


def look_at_columns(notes: Sequence[ColumnNotes]) -> Findings:
    """Return what became of a table's cells.

    There is a sentence for each column with cells that don't count as what stands in
    them; the columns with the largest share of such cells come first.
    """
    findings = Findings()
    remarkable = sorted(
        filter(ColumnNotes.sentence, notes), key=lambda note: -note.share
    )
    for note in remarkable[:_COLUMNS_SHOWN]:
        if note.share > _MOST_SHARE or note.odd:
            findings.note("data", f"{note.sentence()}: is that meant?")
        else:
            findings.good("data", note.sentence())
    if notes and not remarkable:
        findings.good(
            "data", f"no cell of {len(notes):,} columns is missing or unlisted"
        )
    elif len(remarkable) > _COLUMNS_SHOWN:
        findings.note(
            "data",
            f"{len(remarkable) - _COLUMNS_SHOWN:,} more columns have such cells",
        )
    return findings


def _pace(work_s: float, upload_s: float) -> Finding:
    """Return whether a round's work ends well before the time at which uploads begin.

    The work was done on this machine and timed, at models that make kernels slow, after
    the model had run: what is loaded once was there.
    """
    from precad.client.gradients import WORK_ROOM  # noqa: PLC0415

    kind = Kind.GOOD
    text = (
        f"a round's work takes {work_s:.2g} s here at the slowest of the models that"
        f" were tried, and uploads begin after {upload_s:g} s"
    )
    if WORK_ROOM * work_s > upload_s:
        kind = Kind.NOTE
        text += (
            ": a model that is slower still, or a busy machine, makes this owner's late,"
            " and when they begin may tell of its records: let the task's"
            f" deadlines.work be {WORK_ROOM * work_s:.2g} or more"
        )
    return Finding("pace", kind, text)


def check_name(client: ClientId, identity: Identity) -> None:
    """Check that the certificate is this client's: servers believe nothing else.

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
    """Return how far the owner's own limit goes in this task."""
    findings = Findings()
    if account.limit is None:
        findings.note(
            "limit", "no epsilon_limit of your own: only the servers' limit holds"
        )
        return findings
    text, lasts = covered(task, account)
    early = "" if lasts else f"; {account.to_go_on()}"
    if account.whole_task():
        findings.note(
            "limit",
            f"{text}, and goes to this task alone: these records take part in no other"
            f" under it; for that, an epsilon_limit of {account.ample():.2f} or more"
            f"{early}",
        )
    elif lasts:
        findings.good("limit", text)
    else:
        findings.note("limit", f"{text}{early}")
    return findings


def look_at_earlier_task(
    task: Task, account: OwnAccount, state: Path | None = None
) -> Findings:
    """Return a note where a task goes on with a model whose task isn't in the account.

    Only whoever took part there knows that its account is another one. There is a note,
    too, where the account has rounds of this task, and ``state``, the state folder,
    nothing of its training: it began somewhere else.
    """
    findings = Findings()
    made_by = findings.attempt("account", lambda: continued(task))
    if made_by and not account.took_part(made_by["task"]):
        findings.note(
            "account",
            f"this task goes on with the model of task {made_by['task_name']}, which"
            " isn't in this account: if these records took part there, name that"
            ' account\'s folder in the settings (account = "…"; without one it was'
            " that training's state folder), or the two don't add up",
        )
    began_here = state is None or (state / MODELS).exists()
    if account.took_part(str(task.digest)) and not began_here:
        findings.note(
            "account",
            "has rounds of this task already, and the state folder nothing of its"
            " training: each of them would be sat out. Go on in that training's own"
            " folder (precad join with its settings); another training needs a task of"
            " its own: precad task new with another name",
        )
    return findings


def covered(task: Task, account: OwnAccount) -> tuple[str, bool]:
    """Return how many of the task's rounds the owner's limit allows.

    It comes as a sentence, and as whether these are all rounds that the task draws an
    owner for.
    """
    if account.limit is None:
        return "no limit of your own", True
    planned = account.planned()
    rounds = task.mechanism.releases
    participations = account.participations
    allowed = account.rounds_left(rounds - participations)
    whole = f"the task's {rounds:,} rounds"
    if planned < rounds:
        whole = f"at most {planned:,} rounds that it draws an owner for, of {rounds:,}"
    part = f"{allowed:,}"
    if participations:
        part += f" more, after {participations:,},"
    at_owners = task.mechanism.at_owners
    text = f"ε = {account.limit.epsilon:g}{at_owners} allows {part} of {whole}"
    return text, allowed >= planned - participations


# --- both servers

WITHIN_S = 4.0
"""Seconds for all of it: both servers at once, a name's look-up included."""
_LONGEST = 300
"""Letters of a server's own words that are shown."""
SKEW_S = 60.0
"""Seconds: clocks that are further apart are worth a word, because certificates are
valid by them."""


def look_at_servers(
    task: Task | None,
    client: ClientId,
    identity: Identity,
    addresses: Mapping[Role, str],
    within_s: float = WITHIN_S,
    token: Secret | None = None,
) -> Callable[[], Findings]:
    """Begin to look at both servers, each in a thread of its own.

    The function that comes back waits for the servers, up to ``within_s`` after this
    call, and returns the findings.

    Args:
        task: the owner's copy. None where it couldn't be read: then the servers' task
            isn't compared.
        client: who would enrol.
        identity: its certificate and key.
        addresses: ``host:port`` of each server.
        within_s: seconds for all of it.
        token: an enrolment token that the servers look at; it stays unused.
    """
    deadline = time.monotonic() + within_s
    answers: dict[Role, Future[tuple[ServerState, float]]] = {
        role: Future() for role in addresses
    }

    def seconds_left() -> float:
        return max(0.0, deadline - time.monotonic())

    def ask(role: Role, address: str) -> None:
        """Ask a server for its state, and how far its clock is ahead of this one's."""
        try:
            fault = why_unreachable(address, identity, role)
            if fault is not None:
                raise fault
            asked_at = time.time()
            state = ask_for_state(
                task,
                identity,
                role,
                address,
                seconds_left(),
                token,
            )
            half_way = (asked_at + time.time()) / 2
            answers[role].set_result((state, state.clock_ms / 1000 - half_way))
        except BaseException as error:  # noqa: BLE001 -- raised when asked for
            answers[role].set_exception(error)

    for role, address in addresses.items():
        # No pool: its threads would keep a process from ending that waits no longer.
        start_thread(f"look-{role.value}", partial(ask, role, address))

    def findings_of_both() -> Findings:
        """Wait for the answers and return what they say."""
        findings = Findings()
        ahead = {}
        for role, address in addresses.items():
            about = role.title
            try:
                state, ahead[role] = answers[role].result(seconds_left())
            except TimeoutError:  # a name's look-up, or a handshake
                findings.bad(
                    about,
                    f"{about} at {address} didn't answer within {within_s:g} s;"
                    " check its address, and the network between",
                )
            except PrecadError as error:
                findings.bad(about, str(error))
            else:
                findings.append(_server_finding(role, address, client, state))
        findings.extend(_clock_findings(ahead))
        return findings

    return findings_of_both


def _server_finding(
    role: Role, address: str, client: ClientId, state: ServerState
) -> Finding:
    """Return what a server's state means for a client that wants to enrol."""
    kind = Kind.BAD
    if state.finished and state.enrolled:
        kind = Kind.NOTE
        text = (
            f"the training at {address} is finished: nothing is left to take part in,"
            " and precad join fetches its final model as long as the servers are there"
        )
    elif state.finished:
        text = (
            f"the training at {address} is finished, without client {client}: ask the"
            " operator for the next task"
        )
    elif state.present:
        text = (
            f"another process takes part as client {client} now: end one of the two;"
            " records that aren't among its own need a certificate of another name"
        )
    elif not state.enrolling and not state.enrolled:
        text = (
            f"enrolment at {address} is over and client {client} isn't enrolled: it is"
            " too late for this task; ask the operator for the next"
        )
    elif state.refusal:
        reason = one_line(state.refusal[:_LONGEST])
        text = f"{role.title} at {address} wouldn't enrol this client: {reason}"
    else:
        kind = Kind.GOOD
        where = "this client is enrolled" if state.enrolled else "enrolment is open"
        text = f"answers at {address} with the same task; {where}"
    return Finding(role.title, kind, text)


def _clock_findings(ahead: Mapping[Role, float]) -> Findings:
    """Return which clock is off, this machine's or a server's.

    ``ahead`` has the seconds by which a server's clock is ahead of this machine's, for
    each server that has answered. Where all of them are off in one direction, this
    machine's clock is taken for the wrong one.
    """
    findings = Findings()
    skews = {role: seconds for role, seconds in ahead.items() if abs(seconds) > SKEW_S}
    directions = {seconds > 0 for seconds in skews.values()}
    judged = "certificates are judged by it"
    if len(skews) == len(ahead) and len(directions) == 1:
        smallest = min(skews.values(), key=abs)
        findings.bad(
            "clock",
            f"this machine's clock is {_apart(-smallest)} the servers': set it,"
            f" {judged}",
        )
    else:
        for role, seconds in skews.items():
            findings.bad(
                "clock",
                f"the clock of {role.title} is {_apart(seconds)} this machine's: tell"
                f" its operator, {judged}",
            )
    if ahead and not skews:
        findings.good("clock", "agrees with the servers' to a minute")
    return findings


def _apart(seconds: float) -> str:
    word = "ahead of" if seconds > 0 else "behind"
    return f"{timedelta(seconds=round(abs(seconds)))} h {word}"


# --- the disk

_VECTORS = 8
"""Vectors of d words that a state folder must have room for: X and one share, each
twice while a file is replaced; two models, and a third on its way."""
_OTHER_BYTES = 2**20
"""Bytes for the account, statements and logs."""
_MOST_TRIED = 2**28
"""Bytes that are reserved for a trial at most; beyond them the system's word is
taken."""


def look_at_state(task: Task, folder: Path | None, account: Path | None) -> Findings:
    """Return whether the owner's folders can be written, have room, and aren't in use.

    ``folder`` is the state folder, ``account`` that of the account; None where nothing
    is kept.
    """
    findings = Findings()
    if folder is None:
        findings.note(
            "state", "no state folder: what was spent is forgotten with this process"
        )
        return findings
    needed = _VECTORS * WORD_BYTES * task.dimension + _OTHER_BYTES
    for path, size in ((folder, needed), (account, _OTHER_BYTES)):
        fault = None if path is None else _no_room(path, size)
        if fault is not None:
            findings.bad("state", fault)
    if folder.is_dir() and not findings.wrong:
        findings.passes("state", lambda: _check_not_in_use(folder))
    if not findings.wrong:
        findings.good(
            "state", f"{folder} can be written and has room for {needed / 1e6:.0f} MB"
        )
    return findings


def kept_model(task: Task, folder: Path | None, least: int) -> Path | None:
    """Return where the task's model lies in the state folder ``folder``.

    None where there is none of ``least`` rounds or more: with the task's rounds, where
    this owner doesn't have the final one.
    """
    if folder is None:
        return None
    path = folder / MODEL_FILE
    try:
        model = load_model(path, task)
    except PrecadError:
        return None
    return path if model.version >= least else None


def _check_not_in_use(folder: Path) -> None:
    with state_lock(folder):
        pass


def _no_room(path: Path, needed: int) -> str | None:
    """Return why ``needed`` bytes can't be written below ``path``; None if they can.

    Nothing stays behind. Where the folder isn't there yet, the nearest folder above it
    that is there is tried: ``path`` would be made in it.
    """
    absolute = path.absolute()
    existing = next(
        folder for folder in (absolute, *absolute.parents) if folder.exists()
    )
    remedy = f"make room for {needed / 1e6:.0f} MB, or name another folder"
    try:
        free = shutil.disk_usage(existing).free
        if free < needed:
            return f"the disk of {path} is full ({free / 1e6:.1f} MB free): {remedy}"
        with tempfile.TemporaryFile(dir=existing) as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, min(needed, _MOST_TRIED))
    except OSError as error:
        return f"{path} can't be written ({error.strerror}): {remedy}"
    return None
