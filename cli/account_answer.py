"""What `precad account` answers: each run's guarantees and all together, as JSON or as tables."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precad.accounting.adversaries import (
    PLANNING_QUANTILE,
    RECORD_LEVEL,
    Adversary,
    Basis,
    Run,
    sensitivity_ratio,
)
from precad.accounting.events import AccountantName, ReleaseCounts, require_poisson
from precad.accounting.guarantees import ASSUMED, PrivacyStatement, cap_of, guarantees
from precad.cli.account import AccountRequest
from precad.cli.options import print_json, refuse_given, require_given
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.common.terminal import Table, say, upper

_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
# R, C, d and f: what R'/C takes.
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")
_AGAIN = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
# e^20 is half a billion: no ratio of odds that large protects anybody.
_NO_PROTECTION = 20.0
MANY = 12
_CHEATING = (
    "who is counted, availability, whole owners' privacy and robustness aren't claimed against it."
)
_NOTES = {
    AccountantName.EXACT: "the guarantee",
    AccountantName.RDP: "upper bound, cross-check",
    AccountantName.GDP_CLT: "asymptotic, not a guarantee",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """One run that is asked about; ``cap`` is the most participations, fixed beforehand."""

    source: str
    """Its task; empty where its numbers were given."""
    run: Run
    delta: float
    cap: int


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run costs, or several together.

    Attributes:
        real: every guarantee by every accountant, as the runs were planned or counted.
        at_cap: the record-level ones at the caps.
    """

    real: tuple[PrivacyStatement, ...]
    at_cap: tuple[PrivacyStatement, ...]

    @classmethod
    def of(cls, asked: Sequence[Asked]) -> "Cost":
        """At the least of the δ."""
        delta = min(each.delta for each in asked)
        real = guarantees([each.run for each in asked], delta)
        capped = [each.run.at_cap(each.cap) for each in asked]
        return cls(real, guarantees(capped, delta, RECORD_LEVEL))

    def document(self, real: str = "guarantees", at_cap: str = "at_cap") -> dict[str, Any]:
        """Both, under these names."""
        return {
            real: [each.to_json() for each in self.real],
            at_cap: [each.to_json() for each in self.at_cap],
        }


def answer(request: AccountRequest) -> None:
    """Print what each run costs, of at most ``MANY``, and, of several, what all cost together."""
    asked = _asked(request)
    each = [(one, Cost.of([one])) for one in asked if len(asked) <= MANY]
    together = Cost.of(asked) if len(asked) > 1 else None
    if request.as_json:
        runs = [{"source": one.source} | cost.document() for one, cost in each]
        runs = runs or [{"source": one.source} for one in asked]
        joint = None if together is None else together.document("together", "together_at_cap")
        print_json(each[0][1].document() if joint is None else {"runs": runs} | joint, indent=2)
        return
    for one, cost in each:
        _show_one(one, cost)
    if together is not None:
        _show_joint(len(asked), together)
    if not each:
        say(sys.stdout, f"Of more than {MANY} the account of each is left out: ask for one.")


def _asked(request: AccountRequest) -> list[Asked]:
    require_poisson(request.sampling)
    tasks, counts = request.task, request.participations
    many = max(1, len(tasks))
    if request.cap is not None:
        checks.count("cap", request.cap)
    if counts and len(counts) != many:
        raise Misconfiguration(
            "participations", len(counts), f"give one for each of {many} tasks, or none"
        )
    if many > 1 and request.cap is not None:
        raise Misconfiguration("cap", request.cap, "leave it out where there are several tasks")
    taken = _taken(counts, request.again, many)
    if not tasks:
        return [_typed(request, taken[0])]
    pairs = zip(tasks, taken, strict=True)
    return [_of_task(request, path, count) for path, count in pairs]


def _taken(
    counts: tuple[int, ...], again: tuple[str, ...], many: int
) -> list[ReleaseCounts | None]:
    """Participations of each run by m, None where nothing was said."""
    if again and len(again) != len(counts):
        raise Misconfiguration(
            "again",
            ", ".join(again),
            "give --participations too: what was released again is part of it"
            if not counts
            else f"give one for each of {len(counts)} --participations (none for none), or none",
        )
    found: list[ReleaseCounts | None] = [None] * many
    for place, total in enumerate(counts):
        checks.count("participations", total)
        by_m = _by_m(again[place]) if again else {}
        if sum(by_m.values()) > total:
            raise Misconfiguration(
                "again", again[place], f"is of more versions than --participations {total}"
            )
        found[place] = {0: total - sum(by_m.values())} | by_m
    return found


def _by_m(text: str) -> dict[int, int]:
    """M → versions, of `1:3,2:1` or `none`."""
    found: dict[int, int] = {}
    for part in () if text.strip() == "none" else text.split(","):
        read = _AGAIN.fullmatch(part.strip())
        if read is None or not int(read[1]):
            raise Misconfiguration(
                "again",
                text,
                "give M:COUNT, both whole numbers and M at least 1, like 1:3 or 1:3,2:1",
            )
        if int(read[1]) in found:
            raise Misconfiguration("again", text, f"says M = {read[1]} twice")
        found[int(read[1])] = int(read[2])
    return found


def _of_task(request: AccountRequest, path: Path, taken: ReleaseCounts | None) -> Asked:
    """What a task says."""
    if request.cover_uploads:
        raise Misconfiguration("cover_uploads", True, "the task says it: leave --cover-uploads out")
    refuse_given(asdict(request), (*_RECORD, *_CLIENT))
    task = Task.load(path)
    cap = cap_of(task, taken) if request.cap is None else request.cap
    return Asked(str(path), Run.of(task, counts=taken), task.privacy.delta, cap)


def _typed(request: AccountRequest, taken: ReleaseCounts | None) -> Asked:
    """What all options by name say."""
    given = asdict(request)
    # One number of the client level alone is of no use.
    wanted = any(given[name] is not None for name in _CLIENT)
    require_given(given, (*_RECORD, *_CLIENT) if wanted else _RECORD)
    numbers = {name: given[name] for name in _RECORD}
    delta = numbers.pop("delta")
    if wanted:
        numbers["sensitivity_ratio"] = sensitivity_ratio(**{name: given[name] for name in _CLIENT})
    run = Run(**numbers, counts=taken, cover_uploads=request.cover_uploads)
    return Asked("", run, delta, run.rounds if request.cap is None else request.cap)


def _show_one(asked: Asked, cost: Cost) -> None:
    run = asked.run
    title = f"Privacy at δ = {asked.delta:g}"
    say(sys.stdout, f"{asked.source}: {title}" if asked.source else title, style="bold")
    for adversary in Adversary:
        rows = [each for each in cost.real if each.adversary is adversary]
        if not rows:
            say(
                sys.stdout,
                f"\n{adversary.value}: give --record-clip, --client-clip, "
                "--dimension and --fractional-bits, or --task, to see it.",
            )
            continue
        first = rows[0]
        what = "a whole client" if adversary is Adversary.CLIENT_LEVEL else "one record"
        say(
            sys.stdout,
            (f"\n{adversary.value}", "bold"),
            f": {what}, against {first.against}\n"
            f"noise multiplier {first.noise_multiplier:.4g}, "
            f"{first.compositions} {_counted(run, adversary)}",
        )
        table = Table("accountant", ">ε", ">μ", "what it is")
        for row in rows:
            mu = "" if row.mu is None else f"{row.mu:.4g}"
            cells = (row.accountant.value, upper(row.epsilon), mu, _note(row))
            table.add(*cells, style=_style(row))
        table.show(sys.stdout)
        for row in cost.at_cap:
            if row.adversary is adversary and row.accountant is AccountantName.EXACT:
                say(
                    sys.stdout,
                    f"exact ε = {upper(row.epsilon)} at {row.compositions} participations, "
                    f"{Basis.CAP.description}"
                    + (f"; against {row.against}" if row.malicious_server else ""),
                )
    say(sys.stdout, f"\n{_rejection(cost)}\n")


def _show_joint(runs: int, cost: Cost) -> None:
    say(sys.stdout, f"All {runs} together, at δ = {cost.real[0].delta:g}", style="bold")
    table = Table("against", "accountant", "what T_i is", ">ε", "what it is")
    for row in (*cost.real, *cost.at_cap):
        if row.basis is not Basis.CAP or row.accountant is AccountantName.EXACT:
            cells = (row.adversary.value, row.accountant.value, row.basis.value)
            table.add(*cells, upper(row.epsilon), _note(row), style=_style(row))
    table.show(sys.stdout)
    say(
        sys.stdout,
        f"{_rejection(cost)}\n"
        "True of tasks that were fixed beforehand. Where the next one was chosen after seeing the "
        "last one's models, only a limit that was set when the owner's account opened holds.",
    )


def _style(row: PrivacyStatement) -> str:
    """A guarantee stands out, a cross-check stands back."""
    return "bold" if row.accountant is AccountantName.EXACT else "dim"


def _note(row: PrivacyStatement) -> str:
    if row.epsilon == float("inf"):
        return "no answer at so small a δ"
    exact = row.accountant is AccountantName.EXACT
    large = ", too large to protect" if exact and row.epsilon > _NO_PROTECTION else ""
    return _NOTES[row.accountant] + large


def _rejection(cost: Cost) -> str:
    """What honest rejection adds to every δ, in words."""
    rows = (*cost.real, *cost.at_cap)
    exact = [row for row in rows if row.accountant is AccountantName.EXACT]
    added = [row.rejection_delta for row in exact if row.rejection_delta is not None]
    if len(added) < len(exact):
        return "Honest rejection isn't in δ: how often updates are tested is known with --task."
    most: dict[Adversary, float] = {}
    for row in exact:
        most[row.adversary] = max(most.get(row.adversary, 0.0), row.rejection_delta or 0.0)
    told = ", ".join(f"{upper(value, 2)} ({who.value})" for who, value in most.items())
    said = f"Honest rejection adds to δ at most {told}."
    if not any(row.malicious_server for row in exact):
        return said
    broken = [row.advantage_delta for row in exact if row.advantage_delta is not None]
    return (
        f"{said} Breaking the cryptography adds at most {upper(max(broken, default=1.0), 2)} for a "
        f"malicious server ({ASSUMED}); {_CHEATING}"
    )


def _counted(run: Run, adversary: Adversary) -> str:
    """What ``compositions`` counts, in words."""
    match adversary, run.basis:
        case Adversary.ONE_SERVER, Basis.PLANNED:
            return f"participations ({PLANNING_QUANTILE} quantile of Binomial(T, q), planned)"
        case Adversary.CLIENTS_ONLY, Basis.PLANNED:
            return "rounds, in each of which the client is drawn with probability q (planned)"
        case Adversary.CLIENT_LEVEL, _:
            if run.cover_uploads:
                return "rounds, in each of which it is hidden whether the client is drawn"
            return "rounds, in each of which all see whether the client is drawn"
        case _, basis:
            assert basis is not None
            return f"participations ({basis.description})"
