"""Match: only submissions that both servers hold, the same signed bytes, go on.

In the servers' messages clients stand by their places in a list that both have agreed
on by digest (the roster, or an attempt's cohort of it), each as the distance from the
one before: a name takes some ten bytes, a distance one.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from precad.aggregator.attempt_states import Matched, Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.server_messages import Hex32, Message, Step
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Take
from precad.common.errors import PeerViolation, Rejection
from precad.common.identifiers import ClientId, Role
from precad.norm_check.proof_submission import AnySubmission

Outcome = str | Rejection
"""Of one client at one server: SHA-256, in hex, of the whole signed bytes (header,
signature and certificates as received) where it holds a submission, else why not."""
_REASONS = tuple(Rejection)


class Places:
    """Places of a list's clients, each once, in the order that both servers have them in."""

    def __init__(self, clients: Iterable[ClientId]) -> None:
        self._clients = tuple(clients)
        self._place = {client: number for number, client in enumerate(self._clients)}

    def steps(self, clients: Iterable[ClientId]) -> tuple[int, ...]:
        """Each one's distance from the one before it, in the list's order; the first's from −1."""
        places = sorted(self._place[client] for client in clients)
        return tuple(
            here - before for before, here in zip([-1, *places], places, strict=False)
        )

    def clients(self, steps: Iterable[int]) -> tuple[ClientId, ...]:
        """Inverse of ``steps``: nobody twice.

        Raises PeerViolation: a step leads out of them.
        """
        place = -1
        size = len(self._clients)
        found = []
        for step in steps:
            place += step
            if step < 1 or place >= size:
                why = f"the other server names somebody who isn't among {size} clients"
                raise PeerViolation(why)
            found.append(self._clients[place])
        return tuple(found)


class Ask(Message):
    """A's turn while collection is open."""

    patient: bool = False
    """Whether B is to wait a moment for its next arrival."""
    over: bool = False
    """Collection is closed at A: its list follows."""


class Offer(Message):
    """What has come to B, whole, since it last offered."""

    clients: tuple[Step, ...]
    """By places in the cohort (``Places``), in its order, which is that of names."""
    signed: tuple[Hex32, ...]
    """Digests of each one's whole signed bytes, in the same order."""


class Alike(Message):
    """Of all that was offered, what A holds alike and goes on now."""

    clients: tuple[Step, ...]
    """By places in the cohort."""


class HeldList(Message):
    """An attempt's cohort as one server holds it, without those who have gone on already."""

    reasons: tuple[Annotated[int, Field(ge=0, le=len(_REASONS))], ...]
    """In the cohort's order: 0 for a submission that is held, else 1 and the reason's
    number."""
    signed: tuple[Hex32, ...]
    """Digests of those that are held, in the same order."""

    @model_validator(mode="after")
    def _has_a_digest_for_each_that_is_held(self) -> Self:
        held = self.reasons.count(0)
        if held != len(self.signed):
            raise ValueError(f"{len(self.signed)} digests of {held} that are held")
        return self

    @classmethod
    def listing(cls, outcomes: Sequence[Outcome]) -> Self:
        """Return the list of these: a byte for each client, and 34 more for what is held."""
        found = [
            _REASONS.index(i) + 1 if isinstance(i, Rejection) else 0 for i in outcomes
        ]
        signed = tuple(each for each in outcomes if not isinstance(each, Rejection))
        return cls(reasons=tuple(found), signed=signed)

    def of(self, clients: Sequence[ClientId]) -> dict[ClientId, Outcome]:
        """Return the outcomes by client.

        Raises PeerViolation: it is over more or fewer.
        """
        if len(self.reasons) != len(clients):
            raise PeerViolation(
                f"the other server's list has {len(self.reasons)} clients, the rest of"
                f" this attempt's cohort has {len(clients)}"
            )
        digests = iter(self.signed)
        outcomes = (
            _REASONS[each - 1] if each else next(digests) for each in self.reasons
        )
        return dict(zip(clients, outcomes, strict=True))


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
    whole = [
        i if isinstance(i, Rejection) else str(i.header.whole_digest) for i in rest
    ]
    return HeldList.listing(whole)


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

    A client counts when both hold the same header, signature and certificates, byte for
    byte; each has checked them at its door. A rejection found by A stands before one
    found by B, and any found reason before mere absence. Where one alone holds a
    submission, and the other nothing of it, it is unmatched. The ``early`` ones were
    matched before, and are on neither list.

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
        reasons = (
            (own, other[client]) if role is Role.SERVER_A else (other[client], own)
        )
        found = (
            r for r in reasons if isinstance(r, Rejection) and r is not Rejection.ABSENT
        )
        # Two that differ, too: whoever can read a header can cause it, nothing is held
        # against it.
        absent = Rejection.ABSENT if own is other[client] else Rejection.UNMATCHED
        rejections[client] = next(found, absent)
    return Matched(
        opened=opened,
        submissions=submissions,
        rejections=rejections,
        early=early,
    )


# Match while collection is open: what both hold alike goes on to validation at once.
#
# In turns: A asks, B offers what has come whole since, A answers which of all that was
# offered it holds alike. Each submission is offered once, so all turns together are as
# long as one list of the cohort, and the lists that close a collection are over the
# rest of it. A client's first header is its only one at either server: what differs now
# always will, and what B alone holds is alike as soon as the same comes to A.

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

    Whose were taken.

    Where a batch has a price of its own, a coin, ``gather`` is set. Then it is taken
    once it has half of those who are missing, or when a turn brought nobody: n clients
    make log n batches.

    Raises PeerUnavailable; PeerViolation: B offers who isn't in the cohort, or somebody
    twice.
    """
    places = Places(opened.cohort)
    offered = set[ClientId]()
    taken = set[ClientId]()
    # Offered and not here yet, with its digest; here and not offered yet; both, and not
    # taken yet.
    expected: dict[ClientId, str] = {}
    here: dict[ClientId, AnySubmission] = {}
    alike: deque[AnySubmission] = deque()
    size = 0
    while not over():
        if expected:
            inbox.wait_arrival(LOOK_S)
        # B waits for its next arrival only where A waits for none, and has no batch
        # left to take.
        patient = not expected and not (size and alike)
        link.send("ask", Ask(patient=patient).to_bytes())
        answer = Offer.from_bytes(link.receive("offer"))
        clients = places.clients(answer.clients)
        signed = answer.signed
        if len(clients) != len(signed):
            raise PeerViolation(
                f"server B offers {len(clients)} clients, {len(signed)} digests"
            )
        again = offered.intersection(clients)
        if again:
            raise PeerViolation(
                f"server B offers {min(again)}, who isn't to be offered now"
            )
        offered.update(clients)
        expected.update(zip(clients, signed, strict=True))
        arrived = {each.context.client: each for each in inbox.arrivals()}
        here.update(arrived)
        for client in (*clients, *arrived):
            if client in expected and client in here:
                submission = here.pop(client)
                # What differs is left to the last lists, which say so.
                if expected.pop(client) == str(submission.header.whole_digest):
                    alike.append(submission)
        size = min(len(alike), MAX_BATCH_CLIENTS)
        enough = min((len(opened.cohort) - len(taken)) / 2, MAX_BATCH_CLIENTS)
        if gather and size < enough and (arrived or clients):
            size = 0
        batch = sorted(
            (alike.popleft() for _ in range(size)), key=lambda each: each.context.client
        )
        names = tuple(submission.context.client for submission in batch)
        link.send("alike", Alike(clients=places.steps(names)).to_bytes())
        take(batch)
        taken.update(names)
    return frozenset(taken)


def say_over(link: PeerLink) -> None:
    """A's last word of these turns: its inbox is closed, and its list follows."""
    link.send("ask", Ask(over=True).to_bytes())


def offer(
    opened: Opened,
    inbox: Inbox,
    link: PeerLink,
    take: Take,
    patience_s: float,
) -> frozenset[ClientId]:
    """B's part: turn after turn until A says that collection is over. Whose were taken.

    Raises PeerUnavailable, also after ``patience_s``; PeerViolation: A names who wasn't
    offered.
    """
    offered: dict[ClientId, AnySubmission] = {}
    places = Places(opened.cohort)
    taken = set[ClientId]()
    while not (turn := Ask.from_bytes(link.receive("ask", timeout_s=patience_s))).over:
        if turn.patient:
            inbox.wait_arrival(LOOK_S)
        new = sorted(
            inbox.arrivals(MAX_BATCH_CLIENTS), key=lambda each: each.context.client
        )
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
