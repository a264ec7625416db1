"""A server's role object, and what clients send; what isn't given isn't touched."""

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Never, cast

from tests.rig.documents import Arguments
from tests.rig.keys import signatures
from tests.rig.norm_check import UNCHECKED

from precad.aggregator.enrol.admission import window_of
from precad.aggregator.peer_link import FrameTransport, PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.server_messages import HeadBody
from precad.aggregator.store import Store
from precad.aggregator.training.model_store import ModelStore
from precad.aggregator.training.session import Session
from precad.common import errors, ring, submission
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.norm_check import proof_submission
from precad.norm_check.dealing import Dealing
from precad.norm_check.share_update import share

PATIENCE_S = 60.0


class Untouched:
    def __getattr__(self, name: str) -> Never:
        raise AssertionError(f"needs no {name}")


class Everybody(dict[ClientId, Enrolment]):
    """A roster on which everybody stands, with the same claim."""

    def __missing__(self, client: ClientId) -> Enrolment:
        return Enrolment(client, 20, 1.0)


class MemorySpentTriples(set[tuple[int, int]]):
    """Spent randomness, for a test that plays a validation without a journal."""

    def spend(self, attempt: int, batch: int) -> None:
        if (attempt, batch) in self:
            raise errors.PeerViolation(
                f"attempt {attempt}, batch {batch} was used before"
            )
        self.add((attempt, batch))


def roster(*claims: tuple[str, int, float]) -> Roster:
    return Roster({ClientId(n): Enrolment(ClientId(n), r, p) for n, r, p in claims})


def link_over(
    end: FrameTransport, task: Task, timeout_s: float = PATIENCE_S
) -> PeerLink:
    return PeerLink(
        transport=end, task=task.digest, max_message_bytes=1 << 20, timeout_s=timeout_s
    )


def aggregator(
    task: Task, role: Role, end: FrameTransport | None = None, **given: object
) -> Aggregator:
    """A server of ``task`` over a link's ``end``, with its own signatures."""
    names = ["dealing", "dealer_key", "coin_key", "noise", "store"]
    parts: Arguments = dict.fromkeys(names, Untouched())
    parts |= {
        "roster": Everybody(),
        "link": link_over(cast("FrameTransport", end), task),
        "cap": PrivacyCap(task),
        "nonces": bytes(64),
    }
    parts |= {
        "set_secret": Secret(bytes(32)),
        "signatures": signatures(task.digest, role),
    }
    return Aggregator(task=task, role=role, **parts | given)


def aggregating(
    task: Task,
    role: Role,
    link: PeerLink,
    dealing: Dealing,
    key: Secret,
    spent: MemorySpentTriples | None = None,
) -> Aggregator:
    store = SimpleNamespace(attempts=MemorySpentTriples() if spent is None else spent)
    return aggregator(
        task, role, link=link, dealing=dealing, dealer_key=key, store=store
    )


def head_of(
    task: Digest, version: int = 0, attempt: int = 0, **given: object
) -> HeadBody:
    some = dict.fromkeys(("valid_set", "head", "history"), bytes(32))
    head = HeadBody(task=task.value, version=version, attempt=attempt, length=1, **some)
    return head.model_copy(update=given)


def session_of(
    role: Role, task: Task, store: Store, folder: Path, **given: object
) -> Session:
    """A server's, of which a test says something; its model lies in ``folder``."""
    names = (
        "identity",
        "inbox",
        "connected_clients",
        "event_log",
        "signer",
        "verifier",
    )
    parts: Arguments = dict.fromkeys((*names, "coin_key", "register"), Untouched())
    parts["enrolling"] = window_of(task)
    parts["model_store"] = ModelStore(task, folder / "model.safetensors")
    return Session(role=role, task=task, store=store, **parts | given)


SERVERS = (Role.SERVER_A, Role.SERVER_B)
OPENINGS = Digest.of(b"o_A"), Digest.of(b"o_B")
MODEL = Digest.of(b"model")
Halves = dict[Role, dict[ClientId, proof_submission.AnySubmission]]


def submissions_of(
    task: Task,
    vectors: Iterable[ring.RingVector],
    attempt: int = 0,
    pen: Callable[[ClientId], submission.Signer] = lambda _: UNCHECKED,
) -> Halves:
    """Each server's halves of what these vectors' clients send, by client, in order."""
    halves: Halves = {role: {} for role in SERVERS}
    for number, x in enumerate(vectors):
        client = ClientId(f"ward-{number:04d}")
        context = submission.SubmissionContext(
            task=task.digest, version=0, attempt=attempt, client=client, model=MODEL
        )
        stated = proof_submission.ForProof(OPENINGS, SERVERS[number % 2])
        pair = share(task, x, context, pen(client), stated)
        for role, half in zip(SERVERS, pair, strict=True):
            halves[role][client] = half
    return halves
