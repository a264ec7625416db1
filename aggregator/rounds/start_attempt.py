"""Open an attempt: both servers know who is drawn; the cohort is whom both ledgers allow."""

from collections.abc import Callable, Collection

from precad.aggregator.peer_link import SETUP_ATTEMPT
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.client_lists import Places
from precad.aggregator.rounds.states import Opened
from precad.aggregator.server_messages import Cohort, Verdict
from precad.aggregator.store import Store
from precad.aggregator.store.schema import Permission
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import ATTEMPTS, ClientId, Digest
from precad.common.task import Task


def propose(
    aggregator: Aggregator, attempt: int, version: int, drawn: Collection[ClientId], model: Digest
) -> Opened:
    """A's part: propose whom its own ledger allows, and open the attempt once B agrees.

    Raises:
        PeerViolation: B refuses, or answers with somebody who wasn't proposed.
        PeerUnavailable: the attempt's number was used, as B has learned since they met.
        NeedsOperators: another attempt needs the operators' word.
    """
    within = aggregator.within_budget(drawn, version)
    why = doubt(aggregator.store, aggregator.task, attempt, version)
    # By places in the roster, which both servers have signed.
    places = Places(aggregator.roster)
    clients = places.steps(within)
    proposal = Cohort(attempt=attempt, clients=clients, model=str(model), doubt=why)
    verdict = _ask(aggregator, proposal)
    if why or verdict.operators:
        raise NeedsOperators(Permission.ATTEMPTS, version, why or verdict.refusal)
    if verdict.used:
        # The servers meet again, and take the larger number.
        raise PeerUnavailable(f"server B refused attempt {attempt}: {verdict.refusal}")
    if verdict.refusal:
        raise PeerViolation(f"server B refused attempt {attempt}: {verdict.refusal}")
    counted = set(places.clients(verdict.clients))
    if not counted <= set(within):
        raise PeerViolation("server B's cohort isn't made of the clients that A proposed")
    opened = _opened(aggregator, attempt, version, counted, model)
    aggregator.link.begin_attempt(attempt)
    return opened


def say_over(aggregator: Aggregator, attempt: int, model: Digest) -> None:
    """A's part: tell B that no attempt follows the final model. Raises PeerViolation."""
    over = Cohort(attempt=attempt, clients=(), model=str(model), over=True)
    if refusal := _ask(aggregator, over).refusal:
        raise PeerViolation(f"server B refused the training's end: {refusal}")


def answer(
    aggregator: Aggregator,
    version: int,
    drawn: Collection[ClientId],
    model: Digest,
    *,
    before_agreeing: Callable[[Opened], None],
) -> Opened | None:
    """B's part: check A's proposal against the coin, its own ledger and model.

    All being well, ``before_agreeing`` opens the inbox, so that no client that A calls finds it
    closed.

    Returns:
        The opened attempt; None when A says that training is over.

    Raises:
        PeerViolation: A proposes somebody whom the coin didn't draw, or another model.
        PeerUnavailable: it proposes an attempt that was used before; they meet again.
        NeedsOperators: another attempt needs the operators' word.
    """
    link = aggregator.link
    link.begin_attempt(SETUP_ATTEMPT)
    proposal = Cohort.from_bytes(link.receive("cohort"))
    attempt, places = proposal.attempt, Places(aggregator.roster)
    proposed = set(places.clients(proposal.clients))
    refusal, why, used = "", "", False
    if strangers := sorted(map(str, proposed - set(drawn))):
        refusal = f"the coin didn't draw {strangers[:3]}"
    elif proposal.model != str(model):
        refusal = f"A's model is {proposal.model}, B's is {model}"
    elif used := not proposal.over and attempt < aggregator.store.attempts.next_number():
        refusal = f"attempt {attempt} was used before"
    elif not proposal.over:
        why = proposal.doubt or doubt(aggregator.store, aggregator.task, attempt, version)
    if refusal or why:
        verdict = Verdict(refusal=refusal or why, operators=bool(why), used=used)
        link.send("cohort", verdict.to_bytes())
        if why:
            raise NeedsOperators(Permission.ATTEMPTS, version, why)
        kind = PeerUnavailable if used else PeerViolation
        raise kind(f"server A's proposal for attempt {attempt}: {refusal}")
    if proposal.over:
        link.send("cohort", Verdict().to_bytes())
        return None
    counted = aggregator.within_budget(sorted(proposed), version)
    opened = _opened(aggregator, attempt, version, counted, model)
    before_agreeing(opened)
    link.send("cohort", Verdict(clients=places.steps(counted)).to_bytes())
    link.begin_attempt(attempt)
    return opened


def _opened(
    aggregator: Aggregator, attempt: int, version: int, counted: Collection[ClientId], model: Digest
) -> Opened:
    """Open it here, durably. Raises PeerViolation: no number is left for the one after it."""
    if attempt >= ATTEMPTS:
        raise PeerViolation(
            f"attempt {attempt} is the last number that there is: no server that "
            "follows the protocol has come to it"
        )
    task, roster = aggregator.task, aggregator.roster
    cohort = tuple(sorted(roster if task.privacy.cover_uploads else counted))
    aggregator.store.attempts.begin(attempt, version, len(cohort), model)
    holders = {} if task.proof is None else roster.seed_holders(task.digest)
    return Opened(attempt, version, cohort, model, frozenset(counted), holders)


def _ask(aggregator: Aggregator, proposal: Cohort) -> Verdict:
    link = aggregator.link
    link.begin_attempt(SETUP_ATTEMPT)
    link.send("cohort", proposal.to_bytes())
    return Verdict.from_bytes(link.receive("cohort"))


# What waits for the operators of both servers.


OPENED_CAP = 3
"""Attempts of one version whose comparisons may be opened before the operators are asked: in each a
server that departs from the protocol reads a bit of X. Of proofs it reads none, and attempts are
only counted (docs/cheating-server.md)."""
GRANTED = 3
"""Attempts that one word of the operators allows."""

_WHY = {
    Permission.ATTEMPTS: "go on trying",
    Permission.WRITE_OFF: (
        "write off the attempt that the other server has lost (its charge stands)"
    ),
    Permission.CLAIMED: f"charge them all the same ({GRANTED} with each word)",
    Permission.COIN: "take new coins, because a server has lost its coin key",
}


class NeedsOperators(PrecadError):
    """Only the operators of both servers can decide how to go on; it is asked again and again."""

    def __init__(self, permission: Permission, version: int, what: str) -> None:
        super().__init__(
            f"version {version} waits for the operators of both servers: {what}. To "
            f"{_WHY[permission]}, each says to its own server: precad allow {permission.value} "
            f"HOST:PORT --server a|b --version {version} --identity FOLDER"
        )
        self.permission = permission
        self.version = version


def doubt(store: Store, task: Task, attempt: int, version: int) -> str:
    """Why another attempt of ``version`` needs the operators' word; empty when it needs none."""
    if attempt <= store.versions.allowed(Permission.ATTEMPTS, version):
        return ""
    if any(not fact.voided for fact in store.ledger.facts(version)):
        return "a release of it may have left already, and another one costs privacy"
    opened = store.versions.opened(version)
    if opened >= OPENED_CAP and task.has_dealer:
        return f"the comparisons of {opened} of its attempts were opened"
    if (tried := store.attempts.count_of(version)) >= task.training.attempts:
        return f"{tried} attempts failed (training.attempts = {task.training.attempts})"
    return ""
