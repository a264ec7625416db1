"""Open an attempt: A proposes cohort and model, B checks both."""

from collections.abc import Callable, Collection

from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.messages import Cohort, Verdict
from precad.common.aggregator.round.states import Opened
from precad.common.enrolment import Roster
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.identifiers import ClientId, Digest
from precad.common.link import SETUP_ATTEMPT, PeerLink


def propose(
    aggregator: Aggregator, attempt: int, version: int, cohort: Collection[ClientId], model: Digest
) -> Opened:
    """A's part: propose, and open the attempt once B agrees. Raises PeerViolation."""
    opened = Opened(attempt, version, tuple(sorted(cohort)), model)
    names = tuple(client.name for client in opened.cohort)
    proposal = Cohort(attempt=attempt, clients=names, model=str(model))
    _ask(aggregator.link, proposal, f"attempt {attempt}")
    aggregator.journal.begin_attempt(attempt, version, len(opened.cohort), model)
    aggregator.link.begin_attempt(attempt)
    return opened


def say_over(aggregator: Aggregator, attempt: int, model: Digest) -> None:
    """A's part: tell B that no attempt follows the final model. Raises PeerViolation."""
    over = Cohort(attempt=attempt, clients=(), model=str(model), over=True)
    _ask(aggregator.link, over, "the training's end")


def _ask(link: PeerLink, proposal: Cohort, proposed: str) -> None:
    """B's verdict on a proposal. Raises PeerViolation when it is a refusal."""
    link.begin_attempt(SETUP_ATTEMPT)
    link.send("cohort", proposal.to_bytes())
    verdict = Verdict.from_bytes(link.receive("cohort"))
    if verdict.refusal:
        raise PeerViolation(f"server B refused {proposed}: {verdict.refusal}")


def answer(
    aggregator: Aggregator,
    version: int,
    model: Digest,
    *,
    before_agreeing: Callable[[int, Collection[ClientId], Digest], None],
) -> Opened | None:
    """B's part: check A's proposal against its own roster, ledger and model.

    Args:
        aggregator: server B.
        version: t of θ_t.
        model: digest of θ_t.
        before_agreeing: called with number, cohort and model when all is well: opens the inbox,
            so that no client that A calls finds it closed.

    Returns:
        The opened attempt; None when A says that training is over.

    Raises:
        PeerViolation: the cohort isn't a set of distinct enrolled clients within their budgets,
            A's model differs, or the number was used before.
    """
    link = aggregator.link
    link.begin_attempt(SETUP_ATTEMPT)
    proposal = Cohort.from_bytes(link.receive("cohort"))
    attempt = proposal.attempt
    clients = tuple(sorted(ClientId(name) for name in proposal.clients))
    refusal = ""
    if len(set(clients)) != len(clients):
        refusal = "the cohort names a client twice"
    elif strangers := [c.name for c in clients if c not in aggregator.roster]:
        refusal = f"the cohort names clients that aren't enrolled: {strangers[:3]}"
    elif spent := set(clients) - set(aggregator.within_budget(clients)):
        refusal = f"the cohort names clients at their privacy limit: {sorted(map(str, spent))[:3]}"
    elif proposal.model != str(model):
        refusal = f"A's model is {proposal.model}, B's is {model}"
    elif attempt < aggregator.journal.next_attempt():
        refusal = f"attempt {attempt} was used before"
    if not refusal and not proposal.over:
        aggregator.journal.begin_attempt(attempt, version, len(clients), model)
        before_agreeing(attempt, clients, model)
    link.send("cohort", Verdict(refusal=refusal).to_bytes())
    if refusal:
        raise PeerViolation(f"server A's proposal for attempt {attempt}: {refusal}")
    if proposal.over:
        return None
    link.begin_attempt(attempt)
    return Opened(attempt, version, clients, model)


def require_enough(roster: Roster, least: int) -> None:
    """Refuse to start with fewer clients than the task asks for. Raises Misconfiguration."""
    if len(roster) < least:
        raise Misconfiguration(
            "enrolment.min_clients",
            least,
            f"only {len(roster)} clients had enrolled at the deadline; start more of them, or "
            "raise deadlines.enrol",
        )
