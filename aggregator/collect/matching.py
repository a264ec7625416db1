"""Match: only submissions that both servers hold, the same signed bytes, go on."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.client_lists import Alike, Ask, HeldList, Offer, Places
from precad.aggregator.rounds.states import Matched, Opened
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Take
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Role
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
    rest = [collected[client] for client in sorted(collected) if client not in early]
    return HeldList.listing(
        [i if isinstance(i, Rejection) else str(i.header.whole_digest) for i in rest]
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
    is unmatched. The ``early`` ones were matched before, and are on neither list.

    Raises PeerViolation: the other server's list isn't over this attempt's cohort.
    """
    other = theirs.of(rest_of(opened, early))
    submissions: dict[ClientId, AnySubmission] = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own = collected[client]
        if not isinstance(own, Rejection):
            if client in early or other[client] == str(own.header.whole_digest):
                submissions[client] = own
                continue
            own.discard()
        reasons = [each for each in (own, other[client]) if isinstance(each, Rejection)]
        if role is Role.SERVER_B:
            reasons.reverse()
        # Two that differ, too: whoever can read a header can cause it, nothing is held against it.
        absent = Rejection.ABSENT if len(reasons) == 2 else Rejection.UNMATCHED  # noqa: PLR2004
        found = (reason for reason in reasons if reason is not Rejection.ABSENT)
        rejections[client] = next(found, absent)
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
        offered = Offer.from_bytes(link.receive("offer"))
        clients, signed = places.clients(offered.clients), offered.signed
        if len(clients) != len(signed):
            raise PeerViolation(f"server B offers {len(clients)} clients, {len(signed)} digests")
        for each in zip(clients, signed, strict=True):
            pairs.offered(*each)
        arrived = inbox.arrivals()
        for submission in arrived:
            pairs.held(submission)
        size = min(len(pairs.alike), MAX_BATCH_CLIENTS)
        enough = min((len(opened.cohort) - len(taken)) / 2, MAX_BATCH_CLIENTS)
        if gather and size < enough and (arrived or offered.clients):
            size = 0
        alike = [pairs.alike.popleft() for _ in range(size)]
        alike.sort(key=lambda submission: submission.context.client)
        clients = tuple(submission.context.client for submission in alike)
        link.send("alike", Alike(clients=places.steps(clients)).to_bytes())
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
        new = sorted(inbox.arrivals(MAX_BATCH_CLIENTS), key=lambda each: each.context.client)
        offered |= {each.context.client: each for each in new}
        steps = places.steps(each.context.client for each in new)
        signed = tuple(str(each.header.whole_digest) for each in new)
        link.send("offer", Offer(clients=steps, signed=signed).to_bytes())
        alike = places.clients(Alike.from_bytes(link.receive("alike")).clients)
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
        self.expected: dict[ClientId, str] = {}
        """Offered, and not here yet: the digests of what B holds, in hex."""
        self.alike: deque[AnySubmission] = deque()

    def offered(self, client: ClientId, signed: str) -> None:
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

    def _compare(self, submission: AnySubmission, signed: str) -> None:
        # What differs is left to the last lists, which say so.
        if signed == str(submission.header.whole_digest):
            self.alike.append(submission)
