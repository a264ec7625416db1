"""Starts precad's real commands with named points at which the test may kill them.

The points exist here only: methods of the real classes are wrapped, in this process's children,
before the command runs. At each point a child looks into its own orders; when the first order is
this point, it strikes it off and kills itself with SIGKILL, so that nothing is flushed, closed or
said; or, where the order says so, it stands still there until the test lets it go on. What leaves
a process (noisy shares, submissions) is noted first, for the test's invariants.

One parent imports everything once and forks each child: a start takes a fraction of a second, and
dozens of restarts fit into a test. It speaks JSON lines: {"start": name, "arguments": […]} in,
{"started": name, "pid": …} and {"ended": pid, "status": …} out. When its input ends, it kills its
children and ends.
"""

import functools
import hashlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from precad.common.share.submission import SignedHeader

# Run as a file: the tests' folder isn't on the path then.
sys.path.append(str(Path(__file__).parents[2]))

from tests.faults import cheat
from tests.rig.waiting import readable_within, until

import precad.cli.start
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.enrol.register import Register
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.aggregator.store.attempts import Attempts
from precad.aggregator.store.owners import Enrolments
from precad.aggregator.store.versions import Versions
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import EventLog
from precad.aggregator.validate import crypten_comparisons
from precad.aggregator.validate.check_by_proof import ByProof
from precad.aggregator.validate.check_with_dealer import Absorber
from precad.client import data_owner
from precad.client import owner_settings as client_settings
from precad.client.connection import Servers
from precad.client.data_owner import DataOwner
from precad.client.own_account import OwnAccount
from precad.client.pending_update import Pending
from precad.dealer import process as dealer_process
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealerConversation
from precad.server_a import process as a_process
from precad.server_b import process as b_process
from precad.simulation import datasets

WARM = (
    dealer_process,
    a_process,
    b_process,
    crypten_comparisons,
    datasets,
    client_settings,
    data_owner,
)


class Orders:
    """What a test wants of one process: the points at which it dies, in this order."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.orders"
        self._notes = folder / f"{name}.notes"
        self._paused = folder / f"{name}.paused"
        self._lock = threading.Lock()

    def at(self, when: str, point: str) -> None:
        """Die here, or stand still, if that is the next order."""
        with self._lock:
            try:
                orders = self._path.read_text(encoding="utf-8").splitlines()
            except FileNotFoundError:
                return
            if not orders or orders[0] not in {f"{when} {point}", f"pause-{when} {point}"}:
                return
            draft = self._path.with_suffix(".part")
            draft.write_text("".join(f"{order}\n" for order in orders[1:]), encoding="utf-8")
            draft.replace(self._path)
            if not orders[0].startswith("pause-"):
                os.kill(os.getpid(), signal.SIGKILL)
            self._paused.touch()
        # Only this thread stands still.
        until(lambda: not self._paused.exists(), f"leave to go on from {point}")

    def note(self, **what: object) -> None:
        """Remember something through the process's death; one write, so whole or not at all."""
        line = json.dumps(what).encode() + b"\n"
        descriptor = os.open(self._notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def install(orders: Orders) -> None:
    """Wrap the real classes' methods."""

    def step_of(step: str, *_rest: object, **_named: object) -> str:
        return "/" + step.split("/", 1)[0]

    def event_of(event: object) -> str:
        return "/" + type(event).__name__

    def role_of(submission: Any, *_rest: object) -> str:
        return f"/{submission.role.value}"

    def nothing(*_given: object, **_named: object) -> str:
        return ""

    def note_noisy_share(step: str, payload: bytes) -> None:
        if step == "noisy-share":
            orders.note(left=hashlib.sha256(payload).hexdigest())

    def note_pair(pair: Any, *_rest: object) -> None:
        context, header = pair[0].context, pair[0].header
        body = header.body_digest if isinstance(header, SignedHeader) else header.update_digest
        orders.note(
            submitted=context.attempt,
            context=str(context.digest),
            commitment=str(header.whole_digest),
            body=str(body),
        )

    def note_delivered(pair: Any, *_rest: object) -> None:
        orders.note(delivered=pair[0].context.attempt)

    def note_spent(number: int, batch: int) -> None:
        orders.note(spent=[number, batch])

    def wrap(
        owner: type,
        method: str,
        suffix: Callable[..., str] = nothing,
        first: Callable[..., None] = nothing,  # type: ignore[assignment]
        last: Callable[..., None] = nothing,  # type: ignore[assignment]
    ) -> None:
        original = getattr(owner, method)

        @functools.wraps(original)
        def wrapped(self: object, *given: Any, **named: Any) -> Any:
            point = f"{owner.__name__}.{method}{suffix(*given, **named)}"
            orders.at("before", point)
            first(*given, **named)
            result = original(self, *given, **named)
            last(*given, **named)
            orders.at("after", point)
            return result

        setattr(owner, method, wrapped)

    wrap(PeerLink, "send", step_of, note_noisy_share)
    wrap(PeerLink, "receive", step_of)
    wrap(PeerLink, "receive_into", step_of)
    for method in ("ask", "row_key", "share"):
        wrap(DealerConversation, method)
    for method in ("absorb", "words"):
        wrap(Absorber, method)
    wrap(ByProof, "take")
    for method in ("claim", "freeze"):
        wrap(Enrolments, method)
    for method in ("begin", "abandon_open", "prepare", "countersign", "sent", "finish", "void"):
        wrap(Attempts, method)
    wrap(Attempts, "spend", first=note_spent)
    for method in ("keep_commitment", "keep_opening", "count_opened", "keep_model_seal", "confirm"):
        wrap(Versions, method)
    wrap(ModelStore, "put")
    for method in ("open", "close", "start", "_accept"):
        wrap(Inbox, method)
    wrap(EventLog, "publish", event_of)
    wrap(Register, "enrol")
    for method in ("join", "deal"):
        wrap(RemoteDealer, method)
    for method in ("key_for", "corrections", "ask"):
        wrap(DealerRole, method)
    for method in ("enrol", "fetch_model", "prepare"):
        wrap(Servers, method)
    wrap(Servers, "submit", first=note_pair, last=note_delivered)
    wrap(Servers, "submit_half", role_of)
    wrap(OwnAccount, "charge")
    for method in ("keep", "drop"):
        wrap(Pending, method)
    wrap(DataOwner, "update")


def child(name: str, arguments: list[str], folder: Path, log: Path) -> None:
    """Become precad's command line."""
    with log.open("ab", buffering=0) as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    install(Orders(folder, name))
    cheat.install(cheat.OrderedCheat(folder, name))
    sys.argv = ["precad", *arguments]
    precad.cli.start.main()


def main() -> None:
    """Fork children as told."""
    children: set[int] = set()
    unread = b""
    while True:
        readable = readable_within(0.02, 0)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    status = 1
                    try:
                        child(
                            order["start"],
                            order["arguments"],
                            Path(order["folder"]),
                            Path(order["log"]),
                        )
                    except SystemExit as end:
                        status = end.code if isinstance(end.code, int) else 0
                    except BaseException:  # noqa: BLE001 -- shown in the child's log
                        sys.excepthook(*sys.exc_info())
                    finally:
                        sys.stdout.flush()
                        sys.stderr.flush()
                        os._exit(status)
                children.add(pid)
                say(started=order["start"], pid=pid)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            children.discard(pid)
            say(ended=pid, status=os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def say(**what: object) -> None:
    """One line to the test."""
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
