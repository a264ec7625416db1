"""What a task guarantees, in words."""

from collections.abc import Sequence

from precad.accounting.adversaries import Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import (
    ASSUMED,
    PrivacyStatement,
    against_a_cheating_server,
    guarantees,
)
from precad.common.task import Task


def statements(task: Task) -> tuple[PrivacyStatement, ...]:
    """The exact statements, before a run."""
    delta = task.privacy.delta
    planned = guarantees(Run.of(task), delta, accountants=(AccountantName.EXACT,))
    cheating = against_a_cheating_server(task, delta)
    return planned if cheating is None else (*planned, cheating)


def sentences(task: Task) -> list[str]:
    """What holds for records and owners, and what is asked of an owner."""
    privacy, training, enrolment = task.privacy, task.training, task.enrolment
    record, other, whole, *cheating = statements(task)
    limit = privacy.epsilon_limit
    stop = (
        "nothing stops an owner at any ε"
        if limit is None
        else f"both servers stop counting an owner at ε = {limit:g}"
    )
    found = [
        (
            f"{enrolment.min_clients:,} to {enrolment.clients:,} owners train {task.dimension:,} "
            f"parameters ({task.model.architecture}) over {training.rounds:,} rounds. Each is "
            f"drawn in a round with probability {privacy.client_rate:g}, then each of its records "
            f"with at most {privacy.record_rate:g}."
        ),
        (
            f"Planned for a record, against one curious server: ε = {record.epsilon:.3g} at "
            f"δ = {record.delta:g}, if its owner takes part {record.compositions:,} times; {stop}."
        ),
        _against_a_cheating_server(cheating, task),
        f"Planned for a record, against other owners only: ε = {other.epsilon:.3g}.",
        f"Planned for a whole owner, both servers honest: ε = {whole.epsilon:.3g}"
        + (", which protects nobody." if whole.epsilon > _NO_PROTECTION else "."),
        (
            f"A record's gradient is cut to a norm of {privacy.record_clip:g}, an owner's update "
            f"to {privacy.client_clip:g}. The servers check that; a longer update passes with "
            f"probability 2^−{task.projections}."
        ),
        f"An owner uploads {8 * task.dimension + 32:,} bytes each time that it takes part"
        + (", and as much when it isn't drawn." if privacy.cover_uploads else "."),
    ]
    if limit is None:
        found.append("Set privacy.epsilon_limit to have an ε enforced.")
    return found


def _against_a_cheating_server(at_cap: Sequence[PrivacyStatement], task: Task) -> str:
    """Which check of norms the task has decides it."""
    if not at_cap:
        return (
            f'Nothing is claimed against a server that cheats: validation = "{task.validation}" '
            "holds against one that follows the protocol."
        )
    (record,) = at_cap
    # A task says how many attempts it has, so both terms are known.
    added = (record.rejection_delta or 0.0) + (record.advantage_delta or 0.0)
    return (
        f'For a record, against {record.against}, as validation = "{task.validation}": '
        f"ε = {record.epsilon:.3g}, at {record.compositions:,} participations, the most that "
        f"count, with δ and {added:.0e} more ({ASSUMED}); who is counted, availability, whole "
        "owners and robustness aren't claimed against it."
    )


_NO_PROTECTION = 20.0
