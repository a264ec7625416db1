"""Starts precad's real commands with named points at which the test may kill them.

The points exist here only: methods of the real classes are wrapped, in children of one warm parent,
before the command runs. Where its next order is this point, a child kills itself by SIGKILL, so
that nothing is flushed, closed or said; or it stands still until the test lets it go on.

The parent speaks JSON lines: {"start": name, "arguments": […]} in, {"started": name, "pid": …} and
{"ended": pid, "status": …} out. When its input ends, it kills its children and ends.
"""

import functools
import hashlib
import importlib
import json
import os
import pkgutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from precad.common.share.submission import SignedHeader

# Run as a file: the tests' folder isn't on the path then.
sys.path.append(str(Path(__file__).parents[2]))

from tests.faults import cheat
from tests.rig.waiting import readable_within, until

import precad.cli.start

WARM = (
    *("precad.dealer.process", "precad.server_a.process", "precad.server_b.process"),
    *("precad.aggregator.validate.crypten_comparisons", "precad.simulation.datasets"),
    *("precad.client.owner_settings", "precad.client.data_owner"),
)
POINTS = {
    "norm_check.dealing:DealerConversation": ("ask", "row_key", "share"),
    "aggregator.validate.check_with_dealer:Absorber": ("absorb", "words"),
    "aggregator.validate.check_by_proof:ByProof": ("take",),
    "aggregator.store.owners:Enrolments": ("claim", "freeze"),
    "aggregator.store.attempts:Attempts": (
        *("begin", "abandon_open", "prepare", "countersign", "sent", "finish", "void"),
    ),
    "aggregator.store.versions:Versions": (
        *("keep_commitment", "keep_opening", "count_opened", "keep_model_seal", "confirm"),
    ),
    "aggregator.training.model_store:ModelStore": ("put",),
    "aggregator.collect.inbox:Inbox": ("open", "close", "start", "_accept"),
    "aggregator.enrol.register:Register": ("enrol",),
    "aggregator.rpc.dealer_client:RemoteDealer": ("join", "deal"),
    "dealer.dealer_role:DealerRole": ("key_for", "corrections", "ask"),
    "client.connection:Servers": ("enrol", "fetch_model", "prepare"),
    "client.own_account:OwnAccount": ("charge",),
    "client.pending_update:Pending": ("keep", "drop"),
    "client.data_owner:DataOwner": ("update",),
}


class Orders:
    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._notes, self._paused = (
            folder / f"{name}.{kind}" for kind in ("orders", "notes", "paused")
        )
        self._lock = threading.Lock()

    def at(self, when: str, point: str) -> None:
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
        cheat.note_in(self._notes, what)


def install(orders: Orders) -> None:
    def step_of(step: str, *_rest: object, **_named: object) -> str:
        return "/" + step.split("/", 1)[0]

    def note_noisy_share(step: str, payload: bytes) -> None:
        if step == "noisy-share":
            orders.note(left=hashlib.sha256(payload).hexdigest())

    def note_pair(pair: Any, *_rest: object) -> None:
        context, header = pair[0].context, pair[0].header
        body = header.body_digest if isinstance(header, SignedHeader) else header.update_digest
        digests = {"context": context.digest, "commitment": header.whole_digest, "body": body}
        orders.note(submitted=context.attempt, **{k: str(each) for k, each in digests.items()})

    def wrap(at: str, method: str, suffix: Any = "", first: Any = None, last: Any = None) -> None:
        of = pkgutil.resolve_name(f"precad.{at}")
        original = getattr(of, method)

        @functools.wraps(original)
        def wrapped(self: object, *given: Any, **named: Any) -> Any:
            point = f"{of.__name__}.{method}{suffix and suffix(*given, **named)}"
            orders.at("before", point)
            if first:
                first(*given, **named)
            result = original(self, *given, **named)
            if last:
                last(*given, **named)
            orders.at("after", point)
            return result

        setattr(of, method, wrapped)

    link, servers = "aggregator.peer_link:PeerLink", "client.connection:Servers"
    wrap(link, "send", step_of, note_noisy_share)
    wrap(link, "receive", step_of)
    wrap(link, "receive_into", step_of)
    told = "aggregator.training.session:EventLog"
    wrap(told, "publish", lambda event: f"/{type(event).__name__}")
    attempts = "aggregator.store.attempts:Attempts"
    wrap(attempts, "spend", first=lambda number, batch: orders.note(spent=[number, batch]))
    delivered = lambda pair, *_rest: orders.note(delivered=pair[0].context.attempt)  # noqa: E731
    wrap(servers, "submit", first=note_pair, last=delivered)
    wrap(servers, "submit_half", lambda submission, *_rest: f"/{submission.role.value}")
    for where, methods in POINTS.items():
        for method in methods:
            wrap(where, method)


def child(name: str, arguments: list[str], folder: Path, log: Path) -> None:
    with log.open("ab", buffering=0) as output, Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    install(Orders(folder, name))
    cheat.install(cheat.OrderedCheat(folder, name))
    sys.argv = ["precad", *arguments]
    precad.cli.start.main()


def main() -> None:
    for module in WARM:
        importlib.import_module(module)
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
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
