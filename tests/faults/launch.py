"""One of precad's real commands with named points at which the test may kill it.

    python -m tests.faults.launch NAME ORDERS serve a --config …

The points exist here only: methods of the real classes are wrapped before the command
runs. Where its next order is this point, a process kills itself by SIGKILL, so that
nothing is flushed, closed or said; or it stands still until the test lets it go on.
"""

import functools
import hashlib
import os
import pkgutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from tests.faults import cheat
from tests.rig.waiting import until

import precad.cli.start
from precad.client.pending_update import Pair
from precad.common.submission import SignedHeader

POINTS = """
norm_check.dealing:DealerConversation ask row_key share
aggregator.validate.check_with_dealer:Absorber absorb words
aggregator.validate.check_by_proof:ByProof take
aggregator.store.owners:Enrolments claim freeze
aggregator.store.attempts:Attempts begin abandon_open prepare countersign sent
aggregator.store.attempts:Attempts finish void
aggregator.store.ledger:Ledger append
aggregator.store.journal_file:JournalFile countersigned
aggregator.store.versions:Versions keep_commitment keep_opening count_opened
aggregator.store.versions:Versions keep_model_seal confirm
aggregator.training.model_store:ModelStore put
aggregator.collect.inbox:Inbox open close start _accept
aggregator.enrol.register:Register enrol
aggregator.rpc.dealer_client:RemoteDealer join deal
dealer.dealer_role:DealerRole key_for corrections ask
client.connection:Servers enrol fetch_model prepare
client.own_account:OwnAccount charge
client.pending_update:Pending keep drop
client.data_owner:DataOwner update
"""  # Of each class some methods


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
            if not orders or orders[0] not in {
                f"{when} {point}",
                f"pause-{when} {point}",
            }:
                return
            draft = self._path.with_suffix(".part")
            draft.write_text(
                "".join(f"{order}\n" for order in orders[1:]), encoding="utf-8"
            )
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

    def note_pair(pair: Pair, *_rest: object) -> None:
        context, header = pair[0].context, pair[0].header
        body = (
            header.body_digest
            if isinstance(header, SignedHeader)
            else header.update_digest
        )
        digests = {
            "context": context.digest,
            "commitment": header.whole_digest,
            "body": body,
        }
        orders.note(
            submitted=context.attempt, **{k: str(each) for k, each in digests.items()}
        )

    def wrap(
        at: str,
        method: str,
        suffix: Callable[..., str] | Literal[""] = "",
        first: Callable[..., None] | None = None,
        last: Callable[..., None] | None = None,
    ) -> None:
        of = pkgutil.resolve_name(f"precad.{at}")
        original = getattr(of, method)

        @functools.wraps(original)
        def wrapped(self: object, *given: object, **named: object) -> object:
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
    told = "aggregator.training.session:EventLog"
    wrap(told, "publish", lambda event: f"/{type(event).__name__}")
    attempts = "aggregator.store.attempts:Attempts"
    wrap(
        attempts,
        "spend",
        first=lambda number, batch: orders.note(spent=[number, batch]),
    )
    delivered = lambda pair, *_rest: orders.note(delivered=pair[0].context.attempt)  # noqa: E731
    wrap(servers, "submit", first=note_pair, last=delivered)
    wrap(servers, "submit_half", lambda submission, *_rest: f"/{submission.role.value}")
    for where, *methods in map(str.split, POINTS.strip().splitlines()):
        for method in methods:
            wrap(where, method)


if __name__ == "__main__":
    name, folder, *command = sys.argv[1:]
    install(Orders(Path(folder), name))
    cheat.install(cheat.OrderedCheat(Path(folder), name))
    sys.argv = ["precad", *command]
    precad.cli.start.main()
