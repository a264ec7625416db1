"""Where a report's facts lie: folders of finished runs, and the servers' databases."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precad.aggregator.store.course import Course, read_course
from precad.cli.report.facts import ChangedInputs
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role

SERVERS = (Role.SERVER_A, Role.SERVER_B)
DATABASE = "state.db"
HISTORY = "history.csv"
SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class Sources:
    """What was found.

    Attributes:
        names: as they were given, for errors.
        course: of server A, or of the only one given; the most participations and repeats of any.
        ledgers: SQLAlchemy URLs by server.
        folder: a finished run's folder, or None.
        data: the data set's name, where the run says it.
        accuracies: by round, from 1; empty where nobody measured them.
        inputs: certificates against changed inputs, where the run made them.
    """

    names: str
    course: Course
    ledgers: dict[Role, str]
    folder: Path | None = None
    data: str | None = None
    accuracies: dict[int, float] = field(default_factory=dict)
    inputs: ChangedInputs | None = None

    @classmethod
    def find(cls, given: Sequence[str]) -> "Sources":
        """Look at each of ``given``: a run's folder, a server's state folder, or a database's URL.

        Raises:
            Misconfiguration: one is none of these, two are of one server, or of different tasks.
            StorageFailure: a database can't be read.
        """
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
                raise Misconfiguration(
                    "RUN",
                    name,
                    f"holds neither {HISTORY} (a finished run) nor {DATABASE} (a server's state); "
                    "give such a folder, or a database's URL",
                )
        if len(folders) > 1:
            raise Misconfiguration("RUN", str(folders[1]), "a report is of one run; give one")
        return cls._of(" ".join(given), list(dict.fromkeys(urls)), folders)

    @classmethod
    def _of(cls, names: str, urls: list[str], folders: list[Path]) -> "Sources":
        found: dict[Role, tuple[str, Course]] = {}
        for url in urls:
            course = read_course(url)
            if course.role in found:
                remedy = f"is {course.role.value}'s, as another is; give one database of each"
                raise Misconfiguration("RUN", names, remedy)
            found[course.role] = url, course
        if not found:
            raise Misconfiguration(
                "RUN", names, "has no server's database: what isn't in a ledger can't be reported"
            )
        ordered = {role: found[role] for role in SERVERS if role in found}
        courses = [course for _, course in ordered.values()]
        # A database that was put back may know of less than the other.
        worst = replace(
            courses[0],
            most_participations=max(course.most_participations for course in courses),
            most_repeats=max(course.most_repeats for course in courses),
        )
        if len({course.task.digest for course in courses}) > 1:
            raise Misconfiguration("RUN", names, "are of different tasks; give one training's")
        return cls(
            names,
            worst,
            {role: url for role, (url, _) in ordered.items()},
            folders[0] if folders else None,
            _data_of(_summary(folders[0])) if folders else None,
            _history(folders[0] / HISTORY) if folders else {},
            _inputs(folders[0]) if folders else None,
        )


def _url(folder: Path) -> str:
    return f"sqlite:///{(folder / DATABASE).resolve()}"


def _summary(folder: Path) -> dict[str, Any]:
    """The run's summary; empty where there is none."""
    path = folder / SUMMARY
    if not path.is_file():
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Misconfiguration("RUN", str(path), f"not JSON ({error})") from None
    return said if isinstance(said, dict) else {}


def _data_of(summary: dict[str, Any]) -> str | None:
    name = summary.get("dataset")
    return name if isinstance(name, str) else None


def _inputs(folder: Path) -> ChangedInputs | None:
    found = _summary(folder).get("robustness")
    if found is None:
        return None
    try:
        return ChangedInputs.model_validate(found["smoothing"])
    except (ValueError, LookupError, TypeError):
        path = str(folder / SUMMARY)
        raise Misconfiguration(
            "RUN",
            path,
            "its certificates of changed inputs can't be read; take the file as written",
        ) from None


def _history(path: Path) -> dict[int, float]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = {int(row["round"]): float(row["accuracy"]) for row in rows if row.get("accuracy")}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        raise Misconfiguration("RUN", str(path), f"isn't a run's history ({error})") from None
    for number, accuracy in found.items():
        if not 0 <= accuracy <= 1:
            raise Misconfiguration("RUN", str(path), f"accuracy of round {number} isn't 0 to 1")
    return found
