"""What a report of a training is made of: the states of both servers, the task, other files."""

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from precad import __version__
from precad.accounting.adversaries import RECORD_LEVEL, Adversary, Run
from precad.accounting.guarantees import EXACT, PrivacyStatement, cap_of, guarantees
from precad.aggregator.store import audit_ledger, compare_ledgers
from precad.aggregator.store.summary import TrainingSummary, read_training
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import BOTH
from precad.certify.inefficacy import attack_bounds
from precad.cli import report_page as facts
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role

SERVERS = (Role.SERVER_A, Role.SERVER_B)
DATABASE = "state.db"
HISTORY = "history.csv"
SUMMARY = "summary.json"


def _places(given: Sequence[str]) -> tuple[list[str], Path | None]:
    """The databases' URLs, and the folder of a finished run, if there is one."""
    urls: list[str] = []
    folders: list[Path] = []
    for name in given:
        folder = Path(name)
        if "://" in name:
            urls.append(name)
        elif (folder / DATABASE).is_file():
            urls.append(_url(folder))
        elif (folder / HISTORY).is_file():
            folders.append(folder)
            states = (folder / "state" / role.value for role in SERVERS)
            urls += [_url(state) for state in states if (state / DATABASE).is_file()]
        else:
            lacks = (
                f"holds neither {HISTORY} (a finished run) nor {DATABASE} (a server's"
                " state)"
            )
            raise Misconfiguration(
                "RUN", name, f"{lacks}; give such a folder, or a database's URL"
            )
    if len(folders) > 1:
        raise Misconfiguration(
            "RUN", str(folders[1]), "a report is of one run; give one"
        )
    return list(dict.fromkeys(urls)), folders[0] if folders else None


def _course(urls: Sequence[str], names: str) -> tuple[TrainingSummary, dict[Role, str]]:
    """What server A has, or the only one given, with the most of any; and the URLs by server."""
    found: dict[Role, tuple[str, TrainingSummary]] = {}
    for url in urls:
        course = read_training(url)
        if course.role in found:
            remedy = (
                f"is {course.role.value}'s, as another is; give one database of each"
            )
            raise Misconfiguration("RUN", names, remedy)
        found[course.role] = url, course
    if not found:
        remedy = "has no server's database: what isn't in a ledger can't be reported"
        raise Misconfiguration("RUN", names, remedy)
    courses = [found[role][1] for role in SERVERS if role in found]
    if len({course.task.digest for course in courses}) > 1:
        raise Misconfiguration(
            "RUN", names, "are of different tasks; give one training's"
        )
    # A database that was put back may know of less than the other.
    most = max(course.most_participations for course in courses)
    repeats = max(course.most_repeats for course in courses)
    worst = replace(courses[0], most_participations=most, most_repeats=repeats)
    return worst, {role: found[role][0] for role in SERVERS if role in found}


def _url(folder: Path) -> str:
    return f"sqlite:///{(folder / DATABASE).resolve()}"


def _summary(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError, RecursionError) as error:
        raise Misconfiguration("RUN", str(path), f"not JSON ({error})") from None
    return said if isinstance(said, dict) else {}


def _inputs(path: Path, found: Any) -> facts.ChangedInputs | None:
    try:
        return (
            None
            if found is None
            else facts.ChangedInputs.model_validate(found["smoothing"])
        )
    except (ValueError, LookupError, TypeError):
        remedy = (
            "its certificates of changed inputs can't be read; take the file as written"
        )
        raise Misconfiguration("RUN", str(path), remedy) from None


def _history(path: Path) -> dict[int, float]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {
            int(row["round"]): float(row["accuracy"])
            for row in rows
            if row.get("accuracy")
        }
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise Misconfiguration(
            "RUN", str(path), f"isn't a run's history ({error})"
        ) from None
    for number, accuracy in found.items():
        if not 0 <= accuracy <= 1:
            raise Misconfiguration(
                "RUN", str(path), f"accuracy of round {number} isn't 0 to 1"
            )
    return found


ATTACKERS: dict[Literal["records", "owners"], tuple[Adversary, tuple[int, ...]]] = {
    "records": (Adversary.CLIENTS_ONLY, (1, 2, 5, 10, 20, 50)),
    "owners": (Adversary.CLIENT_LEVEL, (1, 2, 3)),
}
"""Numbers of attackers that are bounded."""
WRONGLY_NAMED = 0.05
MOST_EPSILON = 30.0
"""From here an attacker names everybody: no curve is computed."""
SAYS_NOTHING = 0.9995
POINTS = 40
"""Rounds for which ε is computed; evenly spaced, the last among them."""


def gather(given: Sequence[str]) -> facts.Report:
    """Return all that a report says of the run, the states and the databases that are given."""
    names = " ".join(given)
    urls, folder = _places(given)
    course, ledgers = _course(urls, names)
    task = course.task
    if not course.versions:
        raise Misconfiguration(
            "RUN", names, "no round was released yet; wait for the first"
        )
    data = None
    accuracies = {}
    inputs = None
    if folder is not None:
        summary = _summary(folder / SUMMARY)
        accuracies = _history(folder / HISTORY)
        data = summary.get("dataset")
        inputs = _inputs(folder / SUMMARY, summary.get("robustness"))
    run = _run(course, course.most_participations, course.versions[-1].version + 1)
    compared = compare_ledgers(*ledgers.values()) if len(ledgers) > 1 else None
    shown = facts.Report(
        precad=__version__,
        training=facts.Training(
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
            data=data if isinstance(data, str) else None,
        ),
        guarantees=_guarantees(course, run),
        rounds=_rounds(course, accuracies),
        robustness=[],
        inputs=inputs,
        enforced=facts.enforced(task),
        ledgers=[
            facts.ReportedLedger(
                server=role.value,
                entries=audit.entries,
                head=str(audit.head),
                findings=[
                    f"{finding.where}: {finding.what}" for finding in audit.findings
                ],
            )
            for role, url in ledgers.items()
            for audit in (audit_ledger(url),)
        ],
        differences=(
            None
            if compared is None
            else [f"{one.where}: {one.what}" for one in compared]
        ),
        not_guaranteed=facts.not_guaranteed(task),
    )
    if shown.accuracy is None:
        return shown
    return shown.model_copy(update={"robustness": _robustness(run, 1 - shown.accuracy)})


def _run(course: TrainingSummary, most: int, released: int) -> Run:
    """So many rounds, for a client with so many participations; each with the most repeats of any.

    A version that was charged and isn't released counts too: its share may have left.
    """
    run = Run.of(course.task, rounds=max(released, most), participations=most)
    return replace(
        run, noise_multiplier=run.noise_multiplier / math.sqrt(1 + course.most_repeats)
    )


def _guarantees(course: TrainingSummary, run: Run) -> list[facts.ReportedGuarantee]:
    delta = course.task.privacy.delta
    limit = course.task.privacy.epsilon_limit
    stated = [(run, each) for each in guarantees(run, delta, accountants=EXACT)]
    if run.malicious_server:
        capped = run.at_cap(cap_of(course.task))
        at_cap = guarantees(capped, delta, (Adversary.ONE_SERVER,), EXACT)
        stated += [(capped, each) for each in at_cap]
    return [
        facts.ReportedGuarantee(
            protects="owner" if said.adversary is Adversary.CLIENT_LEVEL else "record",
            against=said.against,
            epsilon=_finite(said),
            delta=said.delta,
            added_delta=said.added_delta,
            participations=said.compositions,
            basis=said.basis.description,
            limit=limit if said.adversary is Adversary.ONE_SERVER else None,
            found_of_100=_found(of, said),
        )
        for of, said in stated
    ]


def _finite(said: PrivacyStatement) -> float | None:
    return said.epsilon if math.isfinite(said.epsilon) else None


def _found(run: Run, said: PrivacyStatement) -> float:
    """The exact trade-off at 5 wrongly named of 100."""
    if not said.epsilon < MOST_EPSILON:
        return 100.0
    guarantee = ExactGroups(run.events(said.adversary)[0])
    curves = (guarantee.curves(1, direction) for direction in BOTH)
    return 100 * max(float(curve.upper(WRONGLY_NAMED)) for curve in curves)


def _rounds(
    course: TrainingSummary, measured: dict[int, float]
) -> list[facts.ReportedRound]:
    total = len(course.versions)
    delta = course.task.privacy.delta
    step = max(1, total // POINTS)
    found = []
    for number, version in enumerate(course.versions, start=1):
        server = models = None
        if number in (1, total) or number % step == 0:
            counts = course if number == total else version
            part = _run(course, counts.most_participations, version.version + 1)
            server, models = map(_finite, guarantees(part, delta, RECORD_LEVEL, EXACT))
        found.append(
            facts.ReportedRound(
                round=version.version + 1,
                accuracy=measured.get(version.version + 1),
                counted=version.counted,
                rejected=version.rejected,
                epsilon_server=server,
                epsilon_models=models,
            )
        )
    return found


def _robustness(run: Run, error: float) -> list[facts.ReportedRobustness]:
    """PRECAD Theorem 2 by the exact pair: a record of any owner, and a whole owner."""
    found = []
    for unit, (adversary, sizes) in ATTACKERS.items():
        guarantee = ExactGroups(
            replace(run, participations=run.rounds).event(adversary)
        )
        bounds: list[facts.Bound] = []
        silent: int | None = None
        for k in sizes:
            lower = 0.0
            upper = 1.0
            if silent is None:
                both = attack_bounds(error, 1.0, guarantee, k)
                lower = float(both.lower)
                upper = float(both.upper)
                silent = k if upper - lower >= SAYS_NOTHING else None
            bounds.append(
                facts.Bound(
                    attackers=k,
                    lower=lower,
                    upper=upper,
                )
            )
        found.append(
            facts.ReportedRobustness(
                unit=unit,
                error=error,
                bounds=bounds,
                silent_from=silent,
            )
        )
    return found
