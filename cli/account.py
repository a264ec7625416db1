"""`precad account`: what one run or several cost in privacy, against whom, by three accountants."""

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from precad.accounting import adversaries
from precad.accounting.adversaries import Adversary, Basis, Run
from precad.accounting.events import AccountantName, ReleaseCounts, require_poisson
from precad.cli.main import AsJson, command, print_json, refuse_given, require_given
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.common.terminal import AlignedTable, say, upper

if TYPE_CHECKING:
    from precad.accounting.guarantees import PrivacyStatement


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRequest:
    """What `precad account` is asked."""

    task: Annotated[
        tuple[Path, ...], "The task (TOML), not its numbers; all of an owner's tasks."
    ]
    record_rate: Annotated[
        float | None, "p: chance of a record to be drawn in a round, 0 to 1."
    ]
    client_rate: Annotated[
        float | None, "q: chance of a client to be drawn in a round, 0 to 1."
    ]
    noise_multiplier: Annotated[
        float | None, "σ: standard deviation of a server's noise over R'."
    ]
    rounds: Annotated[int | None, "T: rounds of the run."]
    delta: Annotated[float | None, "δ: above 0 and below 1, like 1e-5."]
    participations: Annotated[
        tuple[int, ...],
        "T_i: how often the client took part, from its ledger; once for each task, in "
        "order. Without it this is a plan: the 0.999 quantile of Binomial(T, q).",
    ]
    again: Annotated[
        tuple[str, ...],
        "Of those participations, versions that were released more than once, as the"
        " ledger has it: M:COUNT, COUNT versions of 1 + M releases; 1:3,2:1 for several"
        " M. Once for each task, in order; none for none.",
    ]
    cap: Annotated[
        int | None, "Most participations, fixed before; else the task's limit, or T."
    ]
    record_clip: Annotated[
        float | None, "R: bound on a record's gradient. Needs C, d and f too."
    ]
    client_clip: Annotated[
        float | None, "C: bound on a client's update. Needs R, d and f too."
    ]
    dimension: Annotated[
        int | None, "d: parameters of the model; R' is R + √d·2^−f + C·2^−18."
    ]
    fractional_bits: Annotated[int | None, "f: fractional bits of the fixed point."]
    cover_uploads: Annotated[bool, "Undrawn clients upload too: nobody sees the coin."]
    sampling: Annotated[
        str, "How records and clients are drawn; precad runs poisson."
    ] = "poisson"
    as_json: AsJson


@command()
def account(request: AccountRequest) -> None:
    """What a run costs in privacy, against whom, by three accountants.

    ONE SERVER: a record, against one curious server with any other clients. It sees who takes part
    and knows its own noise: rate p, multiplier σ, once per participation.

    CLIENTS ONLY: a record, against other clients, both servers honest.
    They see the models, with both noises on: √2·σ.

    CLIENT LEVEL: a whole client, against anyone who sees the models,
    both servers honest: with probability q a whole step of √2·σ·R'/C,
    or rate q where uploads are covered. It needs R, C, d and f.

    Neighbours differ in one record whose gradient is zero, or in one client whose update is.

    EXACT is the guarantee. RDP is an upper bound found in another way, a cross-check. GDP-CLT is
    the PRECAD paper's formula, true in a limit only: it usually reports too small an ε.

    A version of which a release was lost and made again is one step with σ/√(1+m), not m more:
    --again takes them as precad ledger shows them.

    Several tasks are those of one owner on the same records:
    each is shown (of more than twelve none), and what all cost together.

    For example:

    \b
        precad account --task task.toml
        precad account --task spring.toml --task autumn.toml \\
          --participations 40 --participations 55
        precad account --task task.toml --participations 40 --again 1:3
        precad account --record-rate 0.2 --client-rate 1 \\
          --noise-multiplier 2 --rounds 60 --delta 1e-5
    """  # noqa: D301 -- click reads the control character
    asked = _asked(request)
    each = [(one, Cost.of(one)) for one in asked if len(asked) <= MANY]
    together = Cost.of(*asked) if len(asked) > 1 else None
    if request.as_json:
        runs = [{"source": one.source} | cost.document() for one, cost in each]
        runs = runs or [{"source": one.source} for one in asked]
        joint = (
            None
            if together is None
            else together.document("together", "together_at_cap")
        )
        print_json(
            each[0][1].document() if joint is None else {"runs": runs} | joint, indent=2
        )
        return
    for one, cost in each:
        _show_one(one, cost)
    if together is not None:
        _show_joint(len(asked), together)
    if not each:
        say(
            sys.stdout,
            f"Of more than {MANY} the account of each is left out: ask for one.",
        )


_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
# R, C, d and f: what R'/C takes.
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")
_AGAIN = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
# e^20 is half a billion: no ratio of odds that large protects anybody.
_NO_PROTECTION = 20.0
MANY = 12
"""Of more runs the account of each is left out."""
_CHEATING = (
    "who is counted, availability, whole owners' privacy and robustness aren't claimed"
)
_NOTES = {
    AccountantName.EXACT: "the guarantee",
    AccountantName.RDP: "upper bound, cross-check",
    AccountantName.GDP_CLT: "asymptotic, not a guarantee",
}


class Asked(NamedTuple):
    """One run that is asked about; ``cap`` is the most participations, fixed beforehand."""

    source: str
    """Its task; empty where its numbers were given."""
    run: Run
    delta: float
    cap: int


class Cost(NamedTuple):
    """What one run costs, or several together, by every accountant."""

    real: "tuple[PrivacyStatement, ...]"
    """Every guarantee, as the runs were planned or counted."""
    at_cap: "tuple[PrivacyStatement, ...]"
    """The record-level ones at the caps."""

    @classmethod
    def of(cls, *asked: Asked) -> "Cost":
        """At the least of the δ."""
        from precad.accounting.guarantees import guarantees  # noqa: PLC0415 -- SciPy

        delta = min(each.delta for each in asked)
        capped = [each.run.at_cap(each.cap) for each in asked]
        real = guarantees([each.run for each in asked], delta)
        return cls(real, guarantees(capped, delta, adversaries.RECORD_LEVEL))

    def document(
        self, real: str = "guarantees", at_cap: str = "at_cap"
    ) -> dict[str, Any]:
        """Both, under these names."""
        pairs = zip((real, at_cap), self, strict=True)
        return {name: [each.to_json() for each in found] for name, found in pairs}


def _asked(request: AccountRequest) -> list[Asked]:
    require_poisson(request.sampling)
    tasks = request.task
    counts = request.participations
    many = max(1, len(tasks))
    if request.cap is not None:
        checks.count("cap", request.cap)
    if counts and len(counts) != many:
        remedy = f"give one for each of {many} tasks, or none"
        raise Misconfiguration("participations", len(counts), remedy)
    if many > 1 and request.cap is not None:
        raise Misconfiguration(
            "cap", request.cap, "leave it out where there are several tasks"
        )
    taken = _taken(counts, request.again, many)
    if not tasks:
        return [_typed(request, taken[0])]
    return [
        _of_task(request, path, count) for path, count in zip(tasks, taken, strict=True)
    ]


def _taken(
    counts: Sequence[int], again: Sequence[str], many: int
) -> list[ReleaseCounts | None]:
    """Participations of each run by m, None where nothing was said."""
    if again and len(again) != len(counts):
        remedy = (
            f"give one for each of {len(counts)} --participations (none for none), or"
            " none"
        )
        if not counts:
            remedy = "give --participations too: what was released again is part of it"
        raise Misconfiguration("again", ", ".join(again), remedy)
    found: list[ReleaseCounts | None] = [None] * many
    for place, total in enumerate(counts):
        checks.count("participations", total)
        by_m = _by_m(again[place]) if again else {}
        if sum(by_m.values()) > total:
            remedy = f"is of more versions than --participations {total}"
            raise Misconfiguration("again", again[place], remedy)
        found[place] = {0: total - sum(by_m.values())} | by_m
    return found


def _by_m(text: str) -> dict[int, int]:
    """M → versions, of `1:3,2:1` or `none`."""
    found: dict[int, int] = {}
    for part in () if text.strip() == "none" else text.split(","):
        read = _AGAIN.fullmatch(part.strip())
        if read is None or not int(read[1]):
            remedy = (
                "give M:COUNT, both whole numbers and M at least 1, like 1:3 or 1:3,2:1"
            )
            raise Misconfiguration("again", text, remedy)
        if int(read[1]) in found:
            raise Misconfiguration("again", text, f"says M = {read[1]} twice")
        found[int(read[1])] = int(read[2])
    return found


def _of_task(request: AccountRequest, path: Path, taken: ReleaseCounts | None) -> Asked:
    from precad.accounting.guarantees import cap_of  # noqa: PLC0415 -- SciPy

    if request.cover_uploads:
        raise Misconfiguration(
            "cover_uploads", True, "the task says it: leave --cover-uploads out"
        )
    refuse_given(asdict(request), (*_RECORD, *_CLIENT))
    task = Task.load(path)
    cap = cap_of(task, taken) if request.cap is None else request.cap
    return Asked(str(path), Run.of(task, counts=taken), task.privacy.delta, cap)


def _typed(request: AccountRequest, taken: ReleaseCounts | None) -> Asked:
    given = asdict(request)
    # One number of the client level alone is of no use.
    wanted = any(given[name] is not None for name in _CLIENT)
    require_given(given, (*_RECORD, *_CLIENT) if wanted else _RECORD)
    numbers = {name: given[name] for name in _RECORD}
    delta = numbers.pop("delta")
    if wanted:
        client = {name: given[name] for name in _CLIENT}
        numbers["sensitivity_ratio"] = adversaries.sensitivity_ratio(**client)
    run = Run(
        **numbers,
        counts=taken,
        cover_uploads=request.cover_uploads,
    )
    return Asked("", run, delta, run.rounds if request.cap is None else request.cap)


def _show_one(asked: Asked, cost: Cost) -> None:
    run = asked.run
    title = f"Privacy at δ = {asked.delta:g}"
    say(sys.stdout, f"{asked.source}: {title}" if asked.source else title, style="bold")
    for adversary in Adversary:
        rows = [each for each in cost.real if each.adversary is adversary]
        if not rows:
            options = (
                "--record-clip, --client-clip, --dimension and --fractional-bits, or"
                " --task"
            )
            say(sys.stdout, f"\n{adversary.value}: give {options}, to see it.")
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
        table = AlignedTable("accountant", ">ε", ">μ", "what it is")
        for row in rows:
            mu = "" if row.mu is None else f"{row.mu:.4g}"
            cells = (row.accountant.value, upper(row.epsilon), mu, _note(row))
            table.add(*cells, style=_style(row))
        table.show(sys.stdout)
        for row in cost.at_cap:
            if row.adversary is adversary and row.accountant is AccountantName.EXACT:
                against = f"; against {row.against}" if row.malicious_server else ""
                at = (
                    f"{row.compositions} participations,"
                    f" {Basis.CAP.description}{against}"
                )
                say(sys.stdout, f"exact ε = {upper(row.epsilon)} at {at}")
    say(sys.stdout, f"\n{_rejection(cost)}\n")


def _show_joint(runs: int, cost: Cost) -> None:
    say(sys.stdout, f"All {runs} together, at δ = {cost.real[0].delta:g}", style="bold")
    table = AlignedTable(
        "against",
        "accountant",
        "what T_i is",
        ">ε",
        "what it is",
    )
    for row in (*cost.real, *cost.at_cap):
        if row.basis is not Basis.CAP or row.accountant is AccountantName.EXACT:
            cells = (row.adversary.value, row.accountant.value, row.basis.value)
            table.add(*cells, upper(row.epsilon), _note(row), style=_style(row))
    table.show(sys.stdout)
    say(
        sys.stdout,
        f"{_rejection(cost)}\nTrue of tasks that were fixed beforehand. Where the next"
        " one was chosen after seeing the last one's models, only a limit that was set"
        " when the owner's account opened holds.",
    )


def _style(row: "PrivacyStatement") -> str:
    """A guarantee stands out, a cross-check stands back."""
    return "bold" if row.accountant is AccountantName.EXACT else "dim"


def _note(row: "PrivacyStatement") -> str:
    if row.epsilon == float("inf"):
        return "no answer at so small a δ"
    exact = row.accountant is AccountantName.EXACT
    large = ", too large to protect" if exact and row.epsilon > _NO_PROTECTION else ""
    return _NOTES[row.accountant] + large


def _rejection(cost: Cost) -> str:
    """What honest rejection adds to every δ, in words."""
    from precad.accounting.guarantees import ASSUMED  # noqa: PLC0415 -- SciPy

    exact = [
        row
        for row in (*cost.real, *cost.at_cap)
        if row.accountant is AccountantName.EXACT
    ]
    if any(row.rejection_delta is None for row in exact):
        return (
            "Honest rejection isn't in δ: how often updates are tested is known with"
            " --task."
        )
    most: dict[Adversary, float] = {}
    for row in exact:
        most[row.adversary] = max(
            most.get(row.adversary, 0.0), row.rejection_delta or 0.0
        )
    told = ", ".join(f"{upper(value, 2)} ({who.value})" for who, value in most.items())
    said = f"Honest rejection adds to δ at most {told}."
    if not any(row.malicious_server for row in exact):
        return said
    known = [row.advantage_delta for row in exact if row.advantage_delta is not None]
    broken = max(known, default=1.0)
    adds = (
        f"Breaking the cryptography adds at most {upper(broken, 2)} for a malicious"
        " server"
    )
    return f"{said} {adds} ({ASSUMED}); {_CHEATING} against it."


def _counted(run: Run, adversary: Adversary) -> str:
    match adversary, run.basis:
        case Adversary.ONE_SERVER, Basis.PLANNED:
            quantile = f"{adversaries.PLANNING_QUANTILE} quantile of Binomial(T, q)"
            return f"participations ({quantile}, planned)"
        case Adversary.CLIENTS_ONLY, Basis.PLANNED:
            return (
                "rounds, in each of which the client is drawn with probability q"
                " (planned)"
            )
        case Adversary.CLIENT_LEVEL, _:
            if run.cover_uploads:
                return (
                    "rounds, in each of which it is hidden whether the client is drawn"
                )
            return "rounds, in each of which all see whether the client is drawn"
        case _, basis:
            assert basis is not None
            return f"participations ({basis.description})"
