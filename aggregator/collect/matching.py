"""Match: only submissions that both servers hold, the same signed bytes, go on."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.client_lists import Alike, HeldList, Offer, Places
from precad.aggregator.rounds.states import Matched, Opened
from precad.aggregator.server_messages import Ask
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Take
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.share.proof_submission import AnySubmission

Collected = Mapping[ClientId, AnySubmission | Rejection]


class Closed(NamedTuple):
    """A collection that is over."""

    collected: Collected
    """What this server holds of the cohort, or why not."""
    theirs: HeldList
    """The other server's list, without the early ones."""
    early: frozenset[ClientId] = frozenset()
    """Matched, and taken for validation, while collection was open."""


def describe(collected: Collected, early: Collection[ClientId] = ()) -> HeldList:
    """What this server holds, as the other server may know it: digests and reasons."""
    rest = (collected[client] for client in sorted(collected) if client not in early)
    return HeldList(
        tuple(i.header.whole_digest if not isinstance(i, Rejection) else i for i in rest)
    )


def rest_of(opened: Opened, early: Collection[ClientId]) -> list[ClientId]:
    """Whom the last lists are over, in their order."""
    return [client for client in opened.cohort if client not in early]


def match(
    opened: Opened,
    role: Role,
    collected: Collected,
    theirs: HeldList,
    early: frozenset[ClientId] = frozenset(),
) -> Matched:
    """Combine both servers' lists; both arrive at the same result.

    A client counts when both hold the same header, signature and certificates, byte for byte; each
    has checked them at its door. A rejection found by A stands before one found by B, and any found
    reason before mere absence. Where one alone holds a submission, and the other nothing of it, it
    is unmatched.

    Args:
        early: matched before; they are on neither list.

    Raises PeerViolation: the other server's list isn't over this attempt's cohort.
    """
    other = theirs.of(rest_of(opened, early))
    submissions: dict[ClientId, AnySubmission] = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own = collected[client]
        if client in early and not isinstance(own, Rejection):
            submissions[client] = own
            continue
        entry = other[client]
        if not isinstance(own, Rejection) and isinstance(entry, Digest):
            if entry == own.header.whole_digest:
                submissions[client] = own
            else:
                # Whoever can read an upload's header can cause it: nothing is held against anyone.
                rejections[client] = Rejection.UNMATCHED
        else:
            own_reason = None if not isinstance(own, Rejection) else own
            other_reason = None if isinstance(entry, Digest) else entry
            reasons = [own_reason, other_reason]
            if role is Role.SERVER_B:
                reasons.reverse()
            found = [r for r in reasons if r is not None and r is not Rejection.ABSENT]
            one_alone = None in reasons
            absent = Rejection.UNMATCHED if one_alone else Rejection.ABSENT
            rejections[client] = found[0] if found else absent
        if not isinstance(own, Rejection) and client not in submissions:
            own.discard()
    return Matched(opened, submissions, rejections, early)


# Match while collection is open: what both hold alike goes on to validation at once.
#
# In turns: A asks, B offers what has come whole since, A answers which of all that was offered it
# holds alike. Each submission is offered once, so all turns together are as long as one list of the
# cohort, and the lists that close a collection are over the rest of it. A client's first header is
# its only one at either server: what differs now always will, and what B alone holds is alike as
# soon as the same comes to A.


LOOK_S = 0.25
"""The longest wait of one turn: how late A may notice that collection is over."""


def ask(
    opened: Opened,
    inbox: Inbox,
    link: PeerLink,
    take: Take,
    over: Callable[[], bool],
    *,
    gather: bool = False,
) -> frozenset[ClientId]:
    """A's part: turn after turn until ``over``; ``say_over`` then tells B.

    Args:
        gather: whether a batch has a price of its own, a coin. Then it is taken once it has half of
            those who are missing, or when a turn brought nobody: n clients make log n batches.

    Returns:
        Whose submissions were taken.

    Raises:
        PeerViolation: B offers who isn't in the cohort, or somebody twice.
        PeerUnavailable: B is gone.
    """
    pairs, places, taken = _Pairs(), Places(opened.cohort), set[ClientId]()
    size = 0
    while not over():
        if pairs.expected:
            inbox.wait_arrival(LOOK_S)
        # B waits for its next arrival only where A waits for none, and has no batch left to take.
        patient = not pairs.expected and not (size and pairs.alike)
        link.send("ask", Ask(patient=patient).to_bytes())
        offered = Offer.from_bytes(link.receive("offer"), places)
        for client, signed in offered.signed.items():
            pairs.offered(client, signed)
        arrived = inbox.arrivals()
        for submission in arrived:
            pairs.held(submission)
        size = min(len(pairs.alike), MAX_BATCH_CLIENTS)
        enough = min((len(opened.cohort) - len(taken)) / 2, MAX_BATCH_CLIENTS)
        if gather and size < enough and (arrived or offered.signed):
            size = 0
        alike = [pairs.alike.popleft() for _ in range(size)]
        alike.sort(key=lambda submission: submission.context.client)
        clients = tuple(submission.context.client for submission in alike)
        link.send("alike", Alike(clients).to_bytes(places))
        take(alike)
        taken.update(clients)
    return frozenset(taken)


def say_over(link: PeerLink) -> None:
    """A's last word of these turns: its inbox is closed, and its list follows."""
    link.send("ask", Ask(over=True).to_bytes())


def offer(
    opened: Opened, inbox: Inbox, link: PeerLink, take: Take, patience_s: float
) -> frozenset[ClientId]:
    """B's part: turn after turn until A says that collection is over.

    Args:
        patience_s: the longest wait for A's next turn.

    Returns:
        Whose submissions were taken.

    Raises:
        PeerViolation: A names somebody who wasn't offered.
        PeerUnavailable: A is gone.
    """
    offered: dict[ClientId, AnySubmission] = {}
    places, taken = Places(opened.cohort), set[ClientId]()
    while not (turn := Ask.from_bytes(link.receive("ask", timeout_s=patience_s))).over:
        if turn.patient:
            inbox.wait_arrival(LOOK_S)
        new = {s.context.client: s for s in inbox.arrivals(MAX_BATCH_CLIENTS)}
        offered |= new
        signed = {client: submission.header.whole_digest for client, submission in new.items()}
        link.send("offer", Offer(signed).to_bytes(places))
        alike = Alike.from_bytes(link.receive("alike"), places).clients
        if not offered.keys() >= set(alike):
            raise PeerViolation("server A names submissions that weren't offered")
        take([offered.pop(client) for client in alike])
        taken.update(alike)
    return frozenset(taken)


class _Pairs:
    """A's view: who is held here, who was offered, and who is alike. Each client comes once."""

    def __init__(self) -> None:
        self._offered: set[ClientId] = set()
        self._here: dict[ClientId, AnySubmission] = {}
        self.expected: dict[ClientId, Digest] = {}
        """Offered, and not here yet."""
        self.alike: deque[AnySubmission] = deque()

    def offered(self, client: ClientId, signed: Digest) -> None:
        """B holds it whole. Raises PeerViolation."""
        if client in self._offered:
            raise PeerViolation(f"server B offers {client}, who isn't to be offered now")
        self._offered.add(client)
        if (submission := self._here.pop(client, None)) is None:
            self.expected[client] = signed
        else:
            self._compare(submission, signed)

    def held(self, submission: AnySubmission) -> None:
        """It has come to A."""
        client = submission.context.client
        if (signed := self.expected.pop(client, None)) is None:
            self._here[client] = submission
        else:
            self._compare(submission, signed)

    def _compare(self, submission: AnySubmission, signed: Digest) -> None:
        # What differs is left to the last lists, which say so.
        if signed == submission.header.whole_digest:
            self.alike.append(submission)
