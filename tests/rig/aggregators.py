"""One server's role object: what a test gives is real, and nothing else may be touched."""

from typing import Any

from tests.rig.keys import signatures

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.common.identifiers import Role
from precad.common.task import Task

PATIENCE_S = 60.0


class Untouched:
    """A part that a test says nothing of."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"needs no {name}")


def link_over(end: Any, task: Task, timeout_s: float = PATIENCE_S) -> PeerLink:
    """A link over one end of a pair in memory."""
    return PeerLink(end, task.digest, max_message_bytes=1 << 20, timeout_s=timeout_s)


def aggregator(task: Task, role: Role, end: Any = None, **given: Any) -> Aggregator:
    """A server of ``task`` over a link's ``end``, with its own signatures."""
    names = (
        "roster", "dealing", "dealer_key", "set_secret", "coin_key", "noise", "store"
    )  # fmt: skip
    parts: dict[str, Any] = {name: Untouched() for name in names} | {
        "link": link_over(end, task),
        "nonces": bytes(64),
        "cap": PrivacyCap(task),
        "signatures": signatures(task.digest, role),
    }
    return Aggregator(task=task, role=role, **parts | given)
