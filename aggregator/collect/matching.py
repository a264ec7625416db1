"""Match submissions: only what both servers hold, with the same signed bytes, goes on.

In the servers' messages clients are named by their places in a list that both servers
have agreed on by its digest: the roster, or an attempt's cohort of it. Each place is
sent as its distance from the place before: a name takes some ten bytes, a distance one.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from precad.aggregator import Bytes32, Matched, Message, Opened, PeerLink, Step
from precad.aggregator.collect import Inbox
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Take
from precad.common import ClientId, PeerViolation, Rejection, Role, Task
from precad.norm_check import AnySubmission

Outcome = bytes | Rejection
"""What one server has of one client.

Where it holds a submission: SHA-256, in hex, of the whole signed bytes (header,
signature and certificates as received). Else the reason why it holds none.
"""
_REASONS = tuple(Rejection)
"""All reasons, in the order that numbers them in messages."""


class Places:
    """Name clients by their places in a list that both servers have in one order."""

    def __init__(self, clients: Iterable[ClientId]) -> None:
        self._clients = tuple(clients)
        self._place = {client: place for place, client in enumerate(self._clients)}

    def steps(self, clients: Iterable[ClientId]) -> tuple[int, ...]:
        """Return each client's distance from the one before it, in the list's order.

        The first client's distance is that from −1.
        """
        places = sorted(self._place[client] for client in clients)
        return tuple(place - before for before, place in pairwise([-1, *places]))

    def clients(self, steps: Iterable[int]) -> tuple[ClientId, ...]:
        """Return the clients that ``steps`` names, nobody twice: its inverse.

        Raises PeerViolation: a step leads out of the list, or not forward.
        """
        place = -1
        size = len(self._clients)
        clients = []
        for step in steps:
            place += step
            if step < 1 or place >= size:
                raise PeerViolation(
                    f"the other server names somebody who isn't among {size} clients"
                )
            clients.append(self._clients[place])
        return tuple(clients)


class Ask(Message):
    """A's message of a turn, while collection is open."""

    patient: bool = False
    """Whether B is to wait a moment for its next arrival."""
    over: bool = False
    """Whether collection is closed at A: then A's list follows."""


class Offer(Message):
    """B's answer in a turn: what has come to B, whole, since it last offered."""

    clients: tuple[Step, ...]
    """Clients, by their places in the cohort, in its order, which is that of names."""
    signed: tuple[Bytes32, ...]
    """Digests of each client's whole signed bytes, in the same order."""


class Alike(Message):
    """A's last message of a turn: what A holds alike of all offers, and takes now."""

    clients: tuple[Step, ...]
    """Clients, by their places in the cohort."""


class HeldList(Message):
    """What one server holds of a cohort, without the clients that went on already."""

    reasons: tuple[Annotated[int, Field(ge=0, le=len(_REASONS))], ...]
    """In the cohort's order: 0 where a submission is held, else the reason's number.

    Reasons are numbered from 1.
    """
    signed: tuple[Bytes32, ...]
    """Digests of the submissions that are held, in the same order."""

    @model_validator(mode="after")
    def _has_a_digest_for_each_that_is_held(self) -> Self:
        held = self.reasons.count(0)
        if held != len(self.signed):
            raise ValueError(f"{len(self.signed)} digests of {held} that are held")
        return self

    @classmethod
    def listing(cls, outcomes: Sequence[Outcome]) -> Self:
        """Return the list of these outcomes, in the cohort's order.

        As bytes it has one for each client, and 34 more for each that is held.
        """
        reasons = tuple(
            _REASONS.index(outcome) + 1 if isinstance(outcome, Rejection) else 0
            for outcome in outcomes
        )
        digests = tuple(
            outcome for outcome in outcomes if not isinstance(outcome, Rejection)
        )
        return cls(reasons=reasons, signed=digests)

    def of(self, clients: Sequence[ClientId]) -> dict[ClientId, Outcome]:
        """Return the outcome of each of these clients, whom the list is over.

        Raises PeerViolation: the list is over more clients or fewer.
        """
        if len(self.reasons) != len(clients):
            raise PeerViolation(
                f"the other server's list has {len(self.reasons)} clients, the rest of"
                f" this attempt's cohort has {len(clients)}"
            )
        digests = iter(self.signed)
        outcomes = (
            _REASONS[reason - 1] if reason else next(digests) for reason in self.reasons
        )
        return dict(zip(clients, outcomes, strict=True))


Collected = Mapping[ClientId, AnySubmission | Rejection]
"""What one server holds of each client of a cohort, or why it holds nothing."""


class Closed(NamedTuple):
    """Hold the outcome of a collection that is over."""

    collected: Collected
    """What this server holds of the cohort, or why not."""
    theirs: HeldList
    """The other server's list, without the early clients."""
    early: frozenset[ClientId] = frozenset()
    """Clients that were matched, and then validated, while collection was open."""


def _digest(submission: AnySubmission) -> bytes:
    """Return the digest of all that was signed, as messages have it."""
    return submission.header.whole_digest.value


def describe(collected: Collected, early: Collection[ClientId] = ()) -> HeldList:
    """Return what this server holds, as the other server may know it.

    It has digests and reasons, without the ``early`` clients.
    """
    later = [collected[client] for client in sorted(collected) if client not in early]
    return HeldList.listing(
        [held if isinstance(held, Rejection) else _digest(held) for held in later]
    )


def rest_of(opened: Opened, early: Collection[ClientId]) -> list[ClientId]:
    """Return the clients whom the last lists are over, in their order."""
    return [client for client in opened.cohort if client not in early]


def match(
    opened: Opened,
    role: Role,
    collected: Collected,
    theirs: HeldList,
    early: frozenset[ClientId] = frozenset(),
) -> Matched:
    """Combine both servers' lists; both servers come to the same result.

    A client counts when both servers hold the same header, signature and certificates,
    byte for byte; each server has checked them when they came. A reason found by A
    stands before one found by B, and any found reason before mere absence. A submission
    that one server alone holds, where the other has nothing of that client, is
    unmatched. The ``early`` clients were matched before, and are on neither list.

    Raises PeerViolation: the other server's list isn't over this attempt's cohort.
    """
    their_outcomes = theirs.of(rest_of(opened, early))
    submissions = {}
    rejections: dict[ClientId, Rejection] = {}
    for client in opened.cohort:
        own = collected[client]
        if not isinstance(own, Rejection):
            if client in early or (their_outcomes[client] == _digest(own)):
                submissions[client] = own
                continue
            own.discard()
        other = their_outcomes[client]
        reasons = [
            outcome
            for outcome in ((own, other) if role is Role.SERVER_A else (other, own))
            if isinstance(outcome, Rejection) and outcome is not Rejection.ABSENT
        ]
        if reasons:
            rejections[client] = reasons[0]
        elif own is other:
            rejections[client] = Rejection.ABSENT
        else:
            # Also where the servers hold submissions that differ: whoever can read a
            # header can cause that, so nothing is held against the client.
            rejections[client] = Rejection.UNMATCHED
    return Matched(
        opened=opened,
        submissions=submissions,
        rejections=rejections,
        early=early,
    )


# Match while collection is open: what both servers hold alike goes on to validation at
# once.
#
# It is done in turns: A asks, B offers what has come whole since its last offer, A
# answers which of all that was offered it holds alike. Each submission is offered once.
# So all turns together are as long as one list of the cohort, and the lists that close
# a collection are over the others. A client's first header is its only one at either
# server: what differs now always will, and what B alone holds is alike as soon as the
# same comes to A.

LOOK_S = 0.25
"""How many seconds one turn waits at most.

So late a server may notice that collection is over.
"""


def ask(
    opened: Opened,
    inbox: Inbox,
    link: PeerLink,
    take: Take,
    over: Callable[[], bool],
    *,
    gather: bool = False,
) -> frozenset[ClientId]:
    """Play A's part: match in turns until ``over``; return the clients that were taken.

    After it ``say_over`` tells B. What both servers hold alike is given to ``take``.
    Where each batch has a price of its own, a coin, ``gather`` is set: then a batch is
    taken once it has half of those who are missing, or when a turn brought nobody. So n
    clients make log n batches.

    Raises PeerUnavailable; PeerViolation: B offers a client who isn't in the cohort, or
    one twice; and what ``take`` raises.
    """
    places = Places(opened.cohort)
    offered = set[ClientId]()
    taken = set[ClientId]()
    # Digests of submissions that were offered and aren't here yet.
    expected: dict[ClientId, bytes] = {}
    # Submissions that are here and weren't offered yet.
    only_here: dict[ClientId, AnySubmission] = {}
    # Submissions that were offered, are here alike, and aren't taken yet.
    alike: deque[AnySubmission] = deque()
    batch_size = 0
    while not over():
        if expected:
            inbox.wait_arrival(LOOK_S)
        # B waits for its next arrival only where A waits for none, and has no batch
        # left to take.
        patient = not expected and not (batch_size and alike)
        offer_of_b = _next_offer(link, places, patient=patient)
        again = offered.intersection(offer_of_b)
        if again:
            raise PeerViolation(
                f"server B offers {min(again)}, who isn't to be offered now"
            )
        offered.update(offer_of_b)
        expected.update(offer_of_b)
        arrived = _by_client(inbox.arrivals())
        only_here.update(arrived)
        for client in (*offer_of_b, *arrived):
            if client in expected and client in only_here:
                submission = only_here.pop(client)
                # What differs is left to the last lists, which say so.
                if expected.pop(client) == _digest(submission):
                    alike.append(submission)
        batch_size = min(len(alike), MAX_BATCH_CLIENTS)
        missing = len(opened.cohort) - len(taken)
        enough = min(missing / 2, MAX_BATCH_CLIENTS)
        if gather and batch_size < enough and (arrived or offer_of_b):
            batch_size = 0
        batch = (alike.popleft() for _ in range(batch_size))
        taken.update(_say_alike(link, places, batch, take))
    return frozenset(taken)


def _next_offer(
    link: PeerLink, places: Places, *, patient: bool
) -> dict[ClientId, bytes]:
    """Ask B for its next offer; return the digest of each client's submission.

    Raises PeerUnavailable; PeerViolation: it has other clients than digests.
    """
    link.send("ask", Ask(patient=patient).to_bytes())
    answer = Offer.from_bytes(link.receive("offer"))
    clients = places.clients(answer.clients)
    digests = answer.signed
    if len(clients) != len(digests):
        raise PeerViolation(
            f"server B offers {len(clients)} clients, {len(digests)} digests"
        )
    return dict(zip(clients, digests, strict=True))


def _say_alike(
    link: PeerLink, places: Places, alike: Iterable[AnySubmission], take: Take
) -> tuple[ClientId, ...]:
    """Name what both servers hold alike, and take it; return the clients."""
    batch = _by_client(alike)
    link.send("alike", Alike(clients=places.steps(batch)).to_bytes())
    take(list(batch.values()))
    return tuple(batch)


def _hear_alike(
    link: PeerLink,
    places: Places,
    held: dict[ClientId, AnySubmission],
    take: Take,
    timeout_s: float | None = None,
) -> tuple[ClientId, ...]:
    """Take out of ``held`` what the other server names; return the clients.

    Raises PeerUnavailable; PeerViolation: it names somebody who isn't there.
    """
    alike = Alike.from_bytes(link.receive("alike", timeout_s=timeout_s))
    clients = places.clients(alike.clients)
    if not held.keys() >= set(clients):
        raise PeerViolation(
            "the other server names submissions that aren't left to take"
        )
    take([held.pop(client) for client in clients])
    return clients


def _by_client(submissions: Iterable[AnySubmission]) -> dict[ClientId, AnySubmission]:
    """Return submissions by their clients, in the order of these."""
    by_client = {submission.context.client: submission for submission in submissions}
    return dict(sorted(by_client.items()))


def say_over(link: PeerLink) -> None:
    """End A's turns: tell B that A's inbox is closed, and that its list follows."""
    link.send("ask", Ask(over=True).to_bytes())


def offer(
    opened: Opened,
    inbox: Inbox,
    link: PeerLink,
    take: Take,
    patience_s: float,
) -> frozenset[ClientId]:
    """Play B's part: match in turns until A says that collection is over.

    Return the clients that were taken. What both servers hold alike is given to
    ``take``.

    Raises PeerUnavailable: also where A is silent for ``patience_s`` seconds;
    PeerViolation: A names a client who wasn't offered; and what ``take`` raises.
    """
    offered: dict[ClientId, AnySubmission] = {}
    places = Places(opened.cohort)
    taken = set[ClientId]()
    while True:
        turn = Ask.from_bytes(link.receive("ask", timeout_s=patience_s))
        if turn.over:
            return frozenset(taken)
        if turn.patient:
            inbox.wait_arrival(LOOK_S)
        arrived = _by_client(inbox.arrivals(MAX_BATCH_CLIENTS))
        offered |= arrived
        digests = tuple(_digest(submission) for submission in arrived.values())
        new_offer = Offer(clients=places.steps(arrived), signed=digests)
        link.send("offer", new_offer.to_bytes())
        taken.update(_hear_alike(link, places, offered, take))


# After A's list, in a training with compact releases and a dealer: B knows what is
# alike by the digests on that list, and names it as it comes. So bodies go on while
# others upload, also where A's own halves, 32 bytes each, were all there at once. An
# empty message says that B awaits none of what A holds.


def names_rest(task: Task) -> bool:
    """Return whether B names the rest in trainings of this task."""
    return task.mechanism.compact_release and task.has_dealer


def name_rest(
    opened: Opened,
    inbox: Inbox,
    link: PeerLink,
    take: Take,
    held_by_a: Mapping[ClientId, bytes],
    *,
    names: bool,
) -> frozenset[ClientId]:
    """Play B's part after A's list: wait for what A holds; return who was taken.

    ``held_by_a`` has digests of A's submissions. Unless B ``names`` what comes alike,
    all of it is left to B's own list.

    Raises PeerUnavailable; and what ``take`` raises.
    """
    places = Places(opened.cohort)
    taken = set[ClientId]()
    while True:
        ended = inbox.over(held_by_a, lambda _: False)
        if not ended:
            inbox.wait_arrival(LOOK_S)
        alike = [
            submission
            for submission in inbox.arrivals(MAX_BATCH_CLIENTS)
            if held_by_a.get(submission.context.client) == _digest(submission)
        ]
        if names and (alike or ended):
            taken.update(_say_alike(link, places, alike, take))
        if ended and not alike:
            return frozenset(taken)


def hear_rest(
    opened: Opened,
    link: PeerLink,
    take: Take,
    held: dict[ClientId, AnySubmission],
    patience_s: float,
) -> frozenset[ClientId]:
    """Play A's part after its list: take of ``held`` what B names; return the clients.

    Raises PeerUnavailable: also where B names nobody for ``patience_s`` seconds;
    PeerViolation: B names somebody who isn't held, or twice; what ``take`` raises.
    """
    places = Places(opened.cohort)
    taken = set[ClientId]()
    while named := _hear_alike(link, places, held, take, patience_s):
        taken.update(named)
    return frozenset(taken)
