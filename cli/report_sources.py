"""Gather a report of a training: from both servers' databases, the task and files.

The databases have the task, the ledgers and who was counted; the folder of a finished
run has its databases, the accuracy by round, and what was certified of changed inputs.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, RootModel, ValidationError

from precad.accounting import (
    EXACT,
    RECORD_LEVEL,
    Adversary,
    PrivacyStatement,
    Run,
    cap_of,
)
from precad.accounting.guarantees import guarantees
from precad.aggregator.store import (
    TrainingSummary,
    audit_ledger,
    both_servers,
    compare_ledgers,
    read_training,
)
from precad.certify import BOTH, ExactGroups, attack_bounds
from precad.cli import (
    Bound,
    ChangedInputs,
    Report,
    ReportedGuarantee,
    ReportedLedger,
    ReportedRobustness,
    ReportedRound,
    Training,
    enforced,
    not_guaranteed,
    url_of,
)
from precad.client.results import Answered, Results
from precad.common import SERVERS, Misconfiguration, Role, Unit, this_build

DATABASE = "state.db"
"""A server's database, in its state folder."""
HISTORY = "history.csv"
"""Accuracy by round, in the folder of a finished run."""
SUMMARY = "summary.json"
"""Data set and certificates of changed inputs, in the folder of a finished run."""


def _places(names: Sequence[str]) -> tuple[list[str], Path | None]:
    """Return the URLs of the databases, and the folder of a finished run if any.

    ``names`` are what the person gave: folders and URLs. Raises Misconfiguration: a
    folder is neither a run's nor a server's, or there are two runs.
    """
    urls = []
    folders = []
    for name in names:
        folder = Path(name)
        if "://" in name or (folder / DATABASE).is_file():
            urls.append(url_of(name))
            continue
        states = [folder / "state" / role.value for role in SERVERS]
        found = [url_of(str(state)) for state in states if (state / DATABASE).is_file()]
        urls += found
        if (folder / HISTORY).is_file():
            folders.append(folder)
        elif not found:
            raise Misconfiguration(
                "RUN",
                name,
                f"holds neither {HISTORY} (a finished run) nor {DATABASE} (a server's"
                " state); give such a folder, or a database's URL",
            )
    if len(folders) > 1:
        raise Misconfiguration("RUN", folders[1], "a report is of one run; give one")
    # Each once, in their order.
    return list(dict.fromkeys(urls)), folders[0] if folders else None


def _courses(urls: Sequence[str], names: str) -> dict[str, TrainingSummary]:
    """Return the training as each database has it, by URL; server A's is the first.

    Raises Misconfiguration, of ``names``: there is no database, two are of one server,
    or they are of different tasks.
    """
    courses = {url: read_training(url) for url in urls}
    if not courses:
        raise Misconfiguration(
            "RUN",
            names,
            "has no server's database: what isn't in a ledger can't be reported;"
            " give a finished run's folder, or both servers' state folders",
        )
    if len({course.role for course in courses.values()}) < len(courses):
        raise Misconfiguration(
            "RUN", names, "are of one server; give one database of each"
        )
    if len({course.task.digest for course in courses.values()}) > 1:
        raise Misconfiguration(
            "RUN", names, "are of different tasks; give one training's"
        )
    return dict(sorted(courses.items(), key=lambda item: SERVERS.index(item[1].role)))


class _Robustness(BaseModel):
    """What was certified of a run's model."""

    smoothing: ChangedInputs


class _Summary(BaseModel):
    """What a report takes from a run's summary."""

    dataset: str | None = None
    robustness: _Robustness | None = None


def _summary(path: Path) -> _Summary:
    """Read a run's summary; an empty one where there is no file.

    Raises Misconfiguration: the file isn't JSON, or has another form.
    """
    if not path.is_file():
        return _Summary()
    try:
        return _Summary.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        remedy = (
            "isn't JSON, or its data set or certificates of changed inputs can't be"
            " read; take the file as written"
        )
        raise Misconfiguration("RUN", path, remedy) from None


class _Given(RootModel[Results | Answered]):
    """What a file with results may hold."""


def _results(path: Path, digests: Sequence[str]) -> Results | Answered:
    """Return what was measured of a model, or answered, from a file.

    Raises Misconfiguration: the file has another form, or is of a model or task that
    ``digests`` lacks.
    """
    try:
        results = _Given.model_validate_json(path.read_bytes()).root
    except (OSError, ValueError):
        raise Misconfiguration(
            "--results",
            path,
            "isn't what precad evaluate --json, or of a question ask answer --json,"
            " prints",
        ) from None
    of = results.task if isinstance(results, Answered) else results.model
    if of not in digests:
        raise Misconfiguration("--results", of, "is of another run")
    return results


def _history(path: Path) -> dict[int, float]:
    """Read the accuracy, 0 to 1, by number of the round, where it was measured.

    Raises Misconfiguration: the file isn't a run's history.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        accuracies = {
            int(row["round"]): float(row["accuracy"])
            for row in rows
            if row.get("accuracy")
        }
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise Misconfiguration(
            "RUN", path, f"isn't a run's history ({error})"
        ) from None
    for number, accuracy in accuracies.items():
        if not 0 <= accuracy <= 1:
            raise Misconfiguration(
                "RUN", path, f"accuracy of round {number} isn't 0 to 1"
            )
    return accuracies


ATTACKERS: dict[Literal["records", "owners"], tuple[Adversary, tuple[int, ...]]] = {
    "records": (Adversary.CLIENTS_ONLY, (1, 2, 5, 10, 20, 50)),
    "owners": (Adversary.CLIENT_LEVEL, (1, 2, 3)),
}
"""By what attackers control: the adversary whose guarantee bounds them, and for which
numbers of them."""
WRONGLY_NAMED = 0.05
"""The share of those that didn't take part whom an attacker names all the same."""
MOST_EPSILON = 30.0
"""From here an attacker names everybody: no curve is computed."""
SAYS_NOTHING = 0.9995
"""Bounds on a share that lie so far apart exclude nothing."""
POINTS = 40
"""Rounds for which ε is computed; evenly spaced, the last among them."""


def gather(names: Sequence[str], results: Path | None = None) -> Report:
    """Return all that a report holds of a run, of servers' states and databases.

    ``names`` are their folders and URLs. Without a run's folder the report has no
    accuracy, and no bounds on attackers, which start from it; with one database alone
    it compares no ledgers. ``results`` is a file with what was measured of the newest
    model. Raises Misconfiguration: they aren't of one training, no
    round was released yet, or a file has another form; StorageFailure: a database can't
    be read.
    """
    joined_names = " ".join(names)
    urls, folder = _places(names)
    courses = _courses(urls, joined_names)
    trainings = courses.values()
    course = both_servers(list(trainings))
    task = course.task
    if not course.versions:
        raise Misconfiguration(
            "RUN", joined_names, "no round was released yet; wait for the first"
        )
    summary = _Summary()
    accuracies = {}
    if folder is not None:
        summary = _summary(folder / SUMMARY)
        accuracies = _history(folder / HISTORY)
    run = _run(course, course.most_participations, course.rounds)
    rounds = len(course.versions)
    taken = []
    for each in trainings:
        own = sum(version.rejected is not None for version in each.versions)
        if own < rounds:
            taken.append(
                f"{each.role.value}'s database released {own} of {rounds} rounds"
                " itself, as after a restore: of the others stands here what it"
                " learned again, or what the other server's has"
            )
    differences = None
    if len(courses) > 1:
        differences = [
            f"{difference.where}: {difference.what}"
            for difference in compare_ledgers(*courses)
        ]
        models = {
            each.role.value: str(each.model)
            for each in trainings
            if each.model is not None and len(each.versions) == len(course.versions)
        }
        if len({*models.values()}) > 1:
            differences.append(f"the newest model: {models}")
    if differences:
        taken.append("the ledgers differ: whatever either of them charges counts here")
    report = Report(
        precad=this_build().version,
        training=Training(
            task=task.name,
            task_digest=str(task.digest),
            architecture=task.model.architecture,
            parameters=task.dimension,
            owners=[claim.client.name for claim in course.claims],
            records=sum(claim.records for claim in course.claims),
            rounds=task.mechanism.releases,
            released=len(course.versions),
            attempts=course.attempts,
            model_digest=None if course.model is None else str(course.model),
            data=summary.dataset,
        ),
        guarantees=_guarantees(course, run),
        rounds=_rounds(course, accuracies),
        robustness=[],
        inputs=summary.robustness and summary.robustness.smoothing,
        results=None
        if results is None
        else _results(results, (str(course.model), str(task.digest))),
        enforced=enforced(task),
        ledgers=[_ledger(course.role, url) for url, course in courses.items()],
        differences=differences,
        taken=taken,
        not_guaranteed=not_guaranteed(task),
    )
    if report.accuracy is None:
        return report
    robustness = _robustness(run, 1 - report.accuracy, task.mechanism.assumed_of_claims)
    return report.model_copy(update={"robustness": robustness})


def _ledger(role: Role, url: str) -> ReportedLedger:
    """Recompute the ledger of one server, whose database is at the URL."""
    audit = audit_ledger(url)
    return ReportedLedger(
        server=role.value,
        entries=audit.entries,
        head=str(audit.head),
        findings=[f"{finding.where}: {finding.what}" for finding in audit.findings],
    )


def _run(course: TrainingSummary, participations: int, rounds: int) -> Run:
    """Return the run of a client with so many participations in so many rounds.

    Each is taken to have had the most repeats m of any: a share that left 1 + m times
    tells as much as one share with a σ that is smaller by √(1 + m). A version that was
    charged and isn't released counts too: its share may have left.
    """
    rounds = max(rounds, participations)
    run = Run.of(
        course.task,
        rounds=rounds,
        participations=participations,
        claims=course.claims,
    )
    return replace(
        run, noise_multiplier=run.noise_multiplier / math.sqrt(1 + course.most_repeats)
    )


def _guarantees(course: TrainingSummary, run: Run) -> list[ReportedGuarantee]:
    """Return the exact guarantees of a run, adversary by adversary.

    What they are at the participation cap, over all rounds that were planned, comes
    last: where they hold against a malicious server; and against everybody while the
    training isn't over, since whoever ends it may have seen its models.
    """
    privacy = course.task.privacy
    planned = course.task.mechanism.releases
    released = len(course.versions)
    capped = _run(course, course.most_participations, max(planned, course.rounds))
    capped = capped.at_cap(cap_of(course.task))
    at_cap = tuple(Adversary) if released < planned else (Adversary.ONE_SERVER,)
    if released == planned and not run.malicious_server:
        at_cap = ()
    kinds = (
        (f"after {released} of {planned} rounds", run, tuple(Adversary)),
        ("whenever the training ends, with no more releases repeated", capped, at_cap),
    )
    return [
        ReportedGuarantee(
            protects=Unit.OWNER if adversary is Adversary.CLIENT_LEVEL else run.unit,
            when=when,
            against=statement.against,
            epsilon=_finite(statement),
            least_epsilon=statement.least_epsilon,
            at_owners=statement.at_owners,
            delta=statement.delta,
            added_delta=statement.added_delta,
            participations=statement.compositions,
            basis=statement.basis.description,
            limit=(
                privacy.epsilon_limit if adversary is Adversary.ONE_SERVER else None
            ),
            found_of_100=_found_of_100(of_run, statement),
        )
        for when, of_run, adversaries in kinds
        for adversary in adversaries
        for statement in guarantees(of_run, privacy.delta, (adversary,), EXACT)
    ]


def _finite(statement: PrivacyStatement) -> float | None:
    """Return the statement's ε; None where it is infinite."""
    return statement.epsilon if math.isfinite(statement.epsilon) else None


def _found_of_100(run: Run, statement: PrivacyStatement) -> float:
    """Return how many of 100 that took part an attacker can name at most.

    By the exact trade-off, where it wrongly names ``WRONGLY_NAMED`` of those that
    didn't take part.
    """
    if not statement.epsilon < MOST_EPSILON:
        return 100.0
    guarantee = ExactGroups(run.events(statement.adversary)[0])
    curves = [guarantee.curves(1, direction) for direction in BOTH]
    return 100 * max(float(curve.upper(WRONGLY_NAMED)) for curve in curves)


def _rounds(
    course: TrainingSummary, accuracies: dict[int, float]
) -> list[ReportedRound]:
    """Return what is reported of each released round, in order.

    ε is computed for about ``POINTS`` of them, the first and the last included;
    ``accuracies`` are by number of the round, from 1.
    """
    total = len(course.versions)
    delta = course.task.privacy.delta
    step = max(1, total // POINTS)
    most = course.participations_by_version()
    # The last round has what isn't released too.
    most[-1] = course.most_participations
    rounds = []
    for number, version in enumerate(course.versions, start=1):
        epsilon_server = None
        epsilon_models = None
        if number in (1, total) or number % step == 0:
            run = _run(course, most[number - 1], number)
            server, models = guarantees(run, delta, RECORD_LEVEL, EXACT)
            epsilon_server = _finite(server)
            epsilon_models = _finite(models)
        rounds.append(
            ReportedRound(
                round=number,
                accuracy=accuracies.get(number),
                counted=version.counted,
                rejected=version.rejected,
                epsilon_server=epsilon_server,
                epsilon_models=epsilon_models,
            )
        )
    return rounds


def _robustness(run: Run, error: float, assumed: str) -> list[ReportedRobustness]:
    """Bound the expected error by attackers: records of any owner, and whole owners.

    PRECAD Theorem 2 by the exact pair. ``error`` is the share of wrong answers, 0 to 1,
    of a training without attackers, ``assumed`` what that takes for true of claims. More
    attackers can do no less: once the bounds exclude nothing, those for larger numbers
    are 0 and 1 without being computed.
    """
    reported = []
    for unit, (adversary, numbers) in ATTACKERS.items():
        # Attackers may take part in every round.
        event = replace(run, participations=run.rounds).event(adversary)
        guarantee = ExactGroups(event)
        bounds = []
        silent_from = None
        for attackers in numbers:
            lower = 0.0
            upper = 1.0
            if silent_from is None:
                scores = attack_bounds(error, 1.0, guarantee, attackers)
                lower = float(scores.lower)
                upper = float(scores.upper)
                if upper - lower >= SAYS_NOTHING:
                    silent_from = attackers
            bounds.append(Bound(attackers=attackers, lower=lower, upper=upper))
        reported.append(
            ReportedRobustness(
                unit=unit if unit == "owners" else run.unit.plural,
                error=error,
                bounds=bounds,
                silent_from=silent_from,
                assumed=assumed,
            )
        )
    return reported
