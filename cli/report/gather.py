"""The facts of a report, from the folders of a finished run and the servers' databases."""

import math
from collections.abc import Sequence
from dataclasses import replace

from precad import __version__
from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import PrivacyStatement, guarantees
from precad.aggregator.rounds.privacy_cap import participation_cap
from precad.aggregator.store import audit_ledger, compare_ledgers
from precad.aggregator.store.course import Course
from precad.certify.exact_groups import ExactGroups
from precad.certify.guarantee import BOTH
from precad.certify.inefficacy import attack_bounds
from precad.cli.report import words
from precad.cli.report.facts import Bound, Guarantee, Ledger, Report, Robustness, Round, Training
from precad.cli.report.sources import Sources
from precad.common.errors import Misconfiguration

RECORDS = (1, 2, 5, 10, 20, 50)
OWNERS = (1, 2, 3)
"""Numbers of attackers that are bounded."""
WRONGLY_NAMED = 0.05
MOST_EPSILON = 30.0
"""From here an attacker names everybody: no curve is computed."""
SAYS_NOTHING = 0.9995
POINTS = 40
"""Rounds for which ε is computed; evenly spaced, the last among them."""


def gather(sources: Sources) -> Report:
    """Everything that a report says.

    Raises:
        Misconfiguration: the sources are of different tasks, or hold no released round.
        StorageFailure: a database can't be read.
    """
    course = sources.course
    task = course.task
    if not course.versions:
        raise Misconfiguration(
            "RUN", sources.names, "no round was released yet; wait for the first"
        )
    released = course.versions[-1].version + 1
    run = _run(course, course.most_participations, released)
    shown = Report(
        precad=__version__,
        training=Training(
            task=task.name,
            task_digest=str(task.digest),
            architecture=task.model.architecture,
            parameters=task.dimension,
            owners=list(course.owners),
            records=course.records,
            rounds=task.training.rounds,
            released=len(course.versions),
            attempts=course.attempts,
            model_digest=None if course.model is None else str(course.model),
            data=sources.data,
        ),
        guarantees=_guarantees(course, run),
        rounds=_rounds(course, sources.accuracies),
        robustness=[],
        inputs=sources.inputs,
        enforced=words.enforced(task),
        ledgers=[
            Ledger(
                server=role.value,
                entries=audit.entries,
                head=str(audit.head),
                findings=[f"{finding.where}: {finding.what}" for finding in audit.findings],
            )
            for role, url in sources.ledgers.items()
            for audit in (audit_ledger(url),)
        ],
        differences=_differences(list(sources.ledgers.values())),
        not_guaranteed=words.not_guaranteed(task),
    )
    if shown.accuracy is None:
        return shown
    return shown.model_copy(update={"robustness": _robustness(run, 1 - shown.accuracy)})


def _differences(urls: Sequence[str]) -> list[str] | None:
    if len(urls) < 2:
        return None
    return [f"{found.where}: {found.what}" for found in compare_ledgers(*urls)]


def _run(course: Course, most: int, released: int) -> Run:
    """So many rounds, for a client with so many participations; each with the most repeats of any.

    A version that was charged and isn't released counts too: its share may have left.
    """
    run = Run.of(course.task, rounds=max(released, most), participations=most)
    noise = run.noise_multiplier / math.sqrt(1 + course.most_repeats)
    return replace(run, noise_multiplier=noise)


def _guarantees(course: Course, run: Run) -> list[Guarantee]:
    task, exact = course.task, (AccountantName.EXACT,)
    delta = task.privacy.delta
    stated = [(run, each) for each in guarantees(run, delta, accountants=exact)]
    if run.malicious_server:
        cap = participation_cap(task, task.privacy.record_rate)
        capped = run.at_cap(run.rounds if cap is None else cap)
        one = (Adversary.ONE_SERVER,)
        stated += [(capped, each) for each in guarantees(capped, delta, one, exact)]
    limit = task.privacy.epsilon_limit
    return [
        Guarantee(
            protects="owner" if said.adversary is Adversary.CLIENT_LEVEL else "record",
            against=said.against,
            epsilon=said.epsilon if math.isfinite(said.epsilon) else None,
            delta=said.delta,
            added_delta=_added(said),
            participations=said.compositions,
            basis=said.basis.words,
            limit=limit if said.adversary is Adversary.ONE_SERVER else None,
            found_of_100=_found(of, said),
        )
        for of, said in stated
    ]


def _added(said: PrivacyStatement) -> float | None:
    if said.rejection_delta is None:
        return None
    return said.rejection_delta + (said.advantage_delta or 0.0)


def _found(run: Run, said: PrivacyStatement) -> float:
    """The exact trade-off at 5 wrongly named of 100."""
    if not said.epsilon < MOST_EPSILON:
        return 100.0
    guarantee = ExactGroups(run.events(said.adversary)[0])
    curves = (guarantee.curves(1, direction) for direction in BOTH)
    return 100 * max(float(curve.upper(WRONGLY_NAMED)) for curve in curves)


def _rounds(course: Course, measured: dict[int, float]) -> list[Round]:
    total = len(course.versions)
    step = max(1, total // POINTS)
    task, exact = course.task, (AccountantName.EXACT,)
    found = []
    for number, version in enumerate(course.versions, start=1):
        server = models = None
        if number in (1, total) or number % step == 0:
            last = number == total
            most = course.most_participations if last else version.most_participations
            part = _run(course, most, version.version + 1)
            who = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
            server, models = (
                each.epsilon if math.isfinite(each.epsilon) else None
                for each in guarantees(part, task.privacy.delta, who, exact)
            )
        found.append(
            Round(
                round=version.version + 1,
                accuracy=measured.get(version.version + 1),
                counted=version.counted,
                rejected=version.rejected,
                epsilon_server=server,
                epsilon_models=models,
            )
        )
    return found


def _robustness(run: Run, error: float) -> list[Robustness]:
    """PRECAD Theorem 2 by the exact pair: a record of any owner, and a whole owner."""
    everywhere = replace(run, participations=run.rounds)
    records, owners = map(everywhere.event, (Adversary.CLIENTS_ONLY, Adversary.CLIENT_LEVEL))
    found = []
    for unit, event, sizes in (("records", records, RECORDS), ("owners", owners, OWNERS)):
        guarantee = ExactGroups(event)
        bounds: list[Bound] = []
        for k in sizes:
            if bounds and bounds[-1].upper - bounds[-1].lower >= SAYS_NOTHING:
                between = 0.0, 1.0
            else:
                both = attack_bounds(error, 1.0, guarantee, k)
                between = float(both.lower), float(both.upper)
            bounds.append(Bound(attackers=k, lower=between[0], upper=between[1]))
        silent = [b.attackers for b in bounds if b.upper - b.lower >= SAYS_NOTHING]
        found.append(
            Robustness.model_validate(
                {"unit": unit, "error": error, "bounds": bounds}
                | {"silent_from": min(silent, default=None)}
            )
        )
    return found
