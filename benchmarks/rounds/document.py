"""The document of a run: hardware, cases, series with their exponents; kept as it grows."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.rounds.case import Case, Say, measure
from benchmarks.rounds.fit import exponent, steps
from benchmarks.rounds.hardware import hardware
from benchmarks.rounds.lines import WIDE_AREA
from benchmarks.rounds.ours.system import CHECKS, PHASES, servers_cpu
from benchmarks.rounds.padded import padded_work
from precad.common.errors import Misconfiguration
from precad.common.files import write_file
from precad.common.terminal import json_of

FORMAT = 3
Document = dict[str, Any]
Times = Callable[[dict[str, Any]], float]
MEASURES: dict[str, Times] = {
    "validate_s": lambda found: found["wall_s"]["validate_s"],
    "validate_cpu_s": lambda found: servers_cpu(found, ("validate",)),
    "round_s": lambda found: found["wall_s"]["round_s"],
    "round_cpu_s": lambda found: servers_cpu(found, PHASES),
}
"""What the series show of precad under a check on the local link; processor time of all
servers."""


def main_case(
    dimension: int, clients: int, repeats: int, *, slow: bool, peers: bool
) -> Case:
    """The case that the tables begin with."""
    return Case(dimension, clients, repeats, repeats if slow else 0, peers)


def series_of(main: Case) -> dict[str, list[Case]]:
    """By clients, at a tenth of the main case's dimension; by dimension, with two clients."""

    def case(dimension: int, clients: int) -> Case:
        repeats = min(3, main.repeats)
        return Case(
            dimension, clients, repeats, main.slow_repeats, main.peers, masked=False
        )

    d = main.dimension
    return {
        "clients": [case(d // 10, n) for n in (1, 10, 100)],
        "dimension": [case(size, 2) for size in (d // 100, d // 10, d, 10 * d)],
    }


def run(
    main: Case,
    output: Path | None,
    say: Say,
    *,
    series: bool,
    beside: Sequence[tuple[int, int]] = (),
    measure: Callable[..., dict[str, Any]] = measure,
    padded: Callable[[], list[dict[str, Any]]] = padded_work,
) -> Document:
    """Measure, case by case and link by link.

    Args:
        main: the first case.
        output: keeps what was measured after each link, and is gone on with if a run of
            the same plan on the same machine was broken off.
        say: told what is done next.
        series: whether the series are measured too.
        beside: other sizes that are measured as the first one is, d and n.
        measure: what measures one case.
        padded: what measures the padded work.

    Raises:
        Misconfiguration: ``output`` holds something else.
        PrecadError: a part failed, or a result was wrong.
    """
    plan = series_of(main) if series else {}
    more = [replace(main, dimension=d, clients=n) for d, n in beside]
    wanted: dict[str, Case] = {}
    for case in (main, *more, *(one for each in plan.values() for one in each)):
        wanted.setdefault(case.key, case)
    cases = list(wanted.values())
    document: Document = {
        "format": FORMAT,
        "hardware": hardware(),
        "slow_link": asdict(WIDE_AREA),
        "plan": [asdict(case) for case in cases],
        "main": main.key,
        "beside": [case.key for case in more],
        "cases": {},
        "series": {},
        "complete": False,
    }
    document["cases"] = _kept(output, document)
    for case in cases:

        def keep(result: dict[str, Any], key: str = case.key) -> None:
            document["cases"][key] = result
            _keep(output, document)

        keep(measure(case, say, document["cases"].get(case.key), keep))
    say("the padded work of one data owner")
    document["padded_work"] = padded()
    for name, each in plan.items():
        document["series"][name] = _series(name, each, document["cases"])
    document["complete"] = True
    _keep(output, document)
    return document


def _series(
    name: str, cases: Sequence[Case], measured: dict[str, Any]
) -> dict[str, Any]:
    fits: dict[str, Any] = {check: {} for check in CHECKS}
    for check in CHECKS:
        for label, of in MEASURES.items():
            times = {
                getattr(each, name): of(measured[each.key]["local"][check])
                for each in cases
            }
            fits[check][label] = {"exponent": exponent(times), "steps": steps(times)}
    return {"cases": [case.key for case in cases], "fits": fits}


def _kept(output: Path | None, document: Document) -> dict[str, Any]:
    """The cases of a run that was broken off, the last of them in part."""
    if output is None or not output.exists():
        return {}
    try:
        old = json.loads(output.read_text(encoding="utf-8"))
        same = _of_same_run(old) == _of_same_run(document)
        return dict(old["cases"]) if same and not old["complete"] else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Misconfiguration(
            "--output", str(output), "holds something else; name another file"
        ) from None


def _of_same_run(document: Document) -> list[Any]:
    facts = dict(document["hardware"])
    # A checkout is a changed one as soon as this very run has written its output.
    facts["precad"] = facts["precad"].removesuffix(".dirty")
    # As it is read again: tuples are lists there.
    kept: list[Any] = json.loads(json_of([document["format"], facts, document["plan"]]))
    return kept


def _keep(output: Path | None, document: Document) -> None:
    if output is not None:
        write_file(output, (json_of(document, indent=1) + "\n").encode(), mode=0o644)
