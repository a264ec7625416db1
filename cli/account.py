"""`precad account`: what runs cost in privacy, against whom, by three accountants."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import click

from precad.accounting import (
    AccountantName,
    Adversary,
    Basis,
    Run,
    adversaries,
)
from precad.cli import AsJson, command, print_json, refuse_given, require_given
from precad.common import (
    MOST_DELTA,
    AlignedTable,
    Misconfiguration,
    Task,
    between,
    checks,
    frozen_kw_only_dataclass,
    say,
    upper,
)

if TYPE_CHECKING:
    from precad.accounting import PrivacyStatement


@frozen_kw_only_dataclass
class AccountRequest:
    """Options of `precad account`: a run's task or numbers, and what was counted."""

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
    delta: Annotated[
        float | None,
        "δ: far below 1 over the records, like 1e-5.",
        click.FloatRange(0, MOST_DELTA, min_open=True),
    ]
    participations: Annotated[
        tuple[int, ...],
        "T_i: how often the client took part, from its ledger; once for each task, in "
        "order. Without it this is a plan: the 0.999 quantile of Binomial(T, q).",
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
        Literal["poisson"],
        "How all are drawn; a draw of a fixed size would move the sum by 2 clips.",
    ] = "poisson"
    as_json: AsJson


@command()
def account(request: AccountRequest) -> None:
    """What a run costs in privacy, against whom, by three accountants.

    ONE SERVER: a record, against one curious server with any other clients. It sees
    who takes part and knows its own noise: rate p, multiplier σ, once per
    participation.

    CLIENTS ONLY: a record, against other clients, both servers honest.
    They see the models, with both noises on: √2·σ.

    CLIENT LEVEL: a whole client, against anyone who sees the models,
    both servers honest: with probability q a whole step of √2·σ·R'/C,
    or rate q where uploads are covered. It needs R, C, d and f.

    Neighbours differ in one record whose gradient is zero, or in one client whose
    update is.

    EXACT is the guarantee. RDP is an upper bound found in another way, a cross-check.
    GDP-CLT is the PRECAD paper's formula, true in a limit only: it usually reports too
    small an ε.

    A version of which a release was lost and made again costs more than is said here:
    precad ledger show and precad ledger mine count it.

    Several tasks are those of one owner on the same records:
    each is shown (of more than twelve none), and what all cost together.

    For example:

    \b
        precad account --task task.toml
        precad account --task spring.toml --task autumn.toml \\
          --participations 40 --participations 55
        precad account --record-rate 0.2 --client-rate 1 \\
          --noise-multiplier 2 --rounds 60 --delta 1e-5
    """  # noqa: D301 -- click reads the control character
    asked = _asked_runs(request)
    costs = [(run, Cost.of(run)) for run in asked] if len(asked) <= MANY else []
    together = Cost.of(*asked) if len(asked) > 1 else None
    if request.as_json:
        if together is None:
            document = costs[0][1].document()
        else:
            runs = [{"source": run.source} | cost.document() for run, cost in costs]
            if not costs:
                runs = [{"source": run.source} for run in asked]
            document = {"runs": runs}
            document |= together.document("together", "together_at_cap")
        print_json(document, indent=2)
        return
    for run, cost in costs:
        _show_run(run, cost)
    if together is not None:
        _show_joint(len(asked), together)
    if not costs:
        say(
            f"Of more than {MANY} the account of each is left out: ask for one.",
        )


_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
"""Options that the record level needs where no task is given."""
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")
"""Options that the client level needs besides: R, C, d and f, which give R'/C."""
_NO_PROTECTION = 20.0
"""An ε above it protects nobody: e^20, a ratio of odds, is half a billion."""
MANY = 12
"""Where more runs are given, the account of each is left out."""
_CHEATING = (
    "who is counted, availability, a whole owner's presence and robustness aren't"
    " claimed"
)
"""What isn't claimed against a malicious server, for people."""
_NOTES = {
    AccountantName.EXACT: "the guarantee",
    AccountantName.RDP: "upper bound, cross-check",
    AccountantName.GDP_CLT: "asymptotic, not a guarantee",
}
"""What each accountant's ε is, for people."""


class AskedRun(NamedTuple):
    """One run whose privacy cost is asked for."""

    source: str
    """The path of its task; empty where its numbers were given."""
    run: Run
    delta: float
    cap: int
    """The most participations of one client, fixed before the run."""


class Cost(NamedTuple):
    """What one run costs, or several together, by every accountant."""

    real: "tuple[PrivacyStatement, ...]"
    """Every guarantee, as the runs were planned or counted."""
    at_cap: "tuple[PrivacyStatement, ...]"
    """The guarantees of the record level, with participations at the caps."""

    @classmethod
    def of(cls, *asked: AskedRun) -> "Cost":
        """Account for these runs together, at the smallest of their δ."""
        from precad.accounting.guarantees import guarantees  # noqa: PLC0415 -- SciPy

        delta = min(each.delta for each in asked)
        runs = [each.run for each in asked]
        capped = [each.run.at_cap(each.cap) for each in asked]
        return cls(
            real=guarantees(runs, delta),
            at_cap=guarantees(capped, delta, adversaries.RECORD_LEVEL),
        )

    def document(
        self, real: str = "guarantees", at_cap: str = "at_cap"
    ) -> dict[str, object]:
        """Return both groups of statements as JSON objects, under these names."""
        return {
            real: [statement.to_json() for statement in self.real],
            at_cap: [statement.to_json() for statement in self.at_cap],
        }


def _asked_runs(request: AccountRequest) -> list[AskedRun]:
    """Return the runs that the options ask about: one for each task, or one of numbers.

    Raises Misconfiguration: an option is missing, wrong or doesn't go with another.
    """
    tasks = request.task
    participations = request.participations
    runs = max(1, len(tasks))
    if request.cap is not None:
        checks.count("cap", request.cap)
    if participations and len(participations) != runs:
        raise Misconfiguration(
            "participations",
            len(participations),
            f"give one for each of {runs} tasks, or none",
        )
    if runs > 1 and request.cap is not None:
        raise Misconfiguration(
            "cap", request.cap, "leave it out where there are several tasks"
        )
    # Without them a run's cost is a plan.
    counted: Sequence[int | None] = participations or [None] * runs
    if not tasks:
        return [_run_of_numbers(request, counted[0])]
    return [
        _run_of_task(request, path, of_run)
        for path, of_run in zip(tasks, counted, strict=True)
    ]


def _run_of_task(
    request: AccountRequest, path: Path, participations: int | None
) -> AskedRun:
    """Return the run of the task in this file, with its own cap unless --cap is given.

    Raises Misconfiguration: a number is given that the task says.
    """
    from precad.accounting import cap_of  # noqa: PLC0415

    if request.cover_uploads:
        raise Misconfiguration(
            "cover_uploads", True, "the task says it: leave --cover-uploads out"
        )
    refuse_given(request, (*_RECORD, *_CLIENT))
    task = Task.load(path)
    cap = cap_of(task) if request.cap is None else request.cap
    return AskedRun(
        source=str(path),
        run=Run.of(task, participations=participations),
        delta=task.privacy.delta,
        cap=cap,
    )


def _run_of_numbers(request: AccountRequest, participations: int | None) -> AskedRun:
    """Return the run that the options describe number by number.

    Raises Misconfiguration: a number is missing that the record level needs, or, where
    one of R, C, d and f is given, another of them.
    """
    numbers = asdict(request)
    # One number of the client level alone is of no use.
    client_level = any(numbers[name] is not None for name in _CLIENT)
    require_given(request, (*_RECORD, *_CLIENT) if client_level else _RECORD)
    ratio = None
    if client_level:
        ratio = adversaries.sensitivity_ratio(
            **{name: numbers[name] for name in _CLIENT}
        )
    run = Run(
        record_rate=numbers["record_rate"],
        client_rate=numbers["client_rate"],
        noise_multiplier=numbers["noise_multiplier"],
        rounds=numbers["rounds"],
        participations=participations,
        sensitivity_ratio=ratio,
        cover_uploads=request.cover_uploads,
    )
    return AskedRun(
        source="",
        run=run,
        delta=numbers["delta"],
        cap=run.rounds if request.cap is None else request.cap,
    )


def _show_run(asked: AskedRun, cost: Cost) -> None:
    """Print what one run costs: adversary by adversary, then what is added to δ."""
    title = f"Privacy at δ = {asked.delta:g}"
    if asked.source:
        title = f"{asked.source}: {title}"
    say(title, style="bold")
    for adversary in Adversary:
        statements = [row for row in cost.real if row.adversary is adversary]
        if not statements:
            options = (
                "--record-clip, --client-clip, --dimension and --fractional-bits, or"
                " --task"
            )
            say(f"\n{adversary.value}: give {options}, to see it.")
            continue
        _show_adversary(asked.run, statements)
        for row in cost.at_cap:
            if row.adversary is adversary and row.accountant is AccountantName.EXACT:
                against = f"; against {row.against}" if row.malicious_server else ""
                say(
                    f"exact ε = {upper(row.epsilon)}{row.at_owners} at"
                    f" {row.compositions} participations, {Basis.CAP.description}{against}",
                )
    say(f"\n{_added_to_delta(cost)}\n")


def _show_adversary(run: Run, statements: list["PrivacyStatement"]) -> None:
    """Print a heading and a table of one run's guarantees against one adversary.

    ``statements`` has one for each accountant, all against that adversary.
    """
    first = statements[0]
    adversary = first.adversary
    protected = (
        "a whole client" if adversary is Adversary.CLIENT_LEVEL else f"one {first.unit}"
    )
    say(
        (f"\n{adversary.value}", "bold"),
        f": {protected}{first.at_owners}, against {first.against}\n"
        f"noise multiplier {first.noise_multiplier:.4g}, "
        f"{first.compositions} {_counted(run, adversary)}",
    )
    table = AlignedTable("accountant", ">ε", ">μ", "what it is")
    for row in statements:
        table.add(
            row.accountant.value,
            between(row.least_epsilon, row.epsilon),
            "" if row.mu is None else f"{row.mu:.4g}",
            _note(row),
            style=_style(row),
        )
    table.show()


def _show_joint(runs: int, cost: Cost) -> None:
    """Print what several runs cost together: one table, then what is added to δ.

    Statements at the caps are shown by the exact accountant alone.
    """
    delta = cost.real[0].delta
    say(f"All {runs} together, at δ = {delta:g}", style="bold")
    table = AlignedTable(
        "against",
        "accountant",
        "what T_i is",
        ">ε",
        "what it is",
    )
    for row in (*cost.real, *cost.at_cap):
        if row.basis is not Basis.CAP or row.accountant is AccountantName.EXACT:
            table.add(
                row.adversary.value,
                row.accountant.value,
                row.basis.value,
                between(row.least_epsilon, row.epsilon),
                _note(row),
                style=_style(row),
            )
    table.show()
    say(
        f"{_added_to_delta(cost)}\nTrue of tasks that were fixed beforehand. Where the"
        " next one was chosen after seeing the last one's models, only a limit that was"
        " set when the owner's account opened holds.",
    )


def _style(row: "PrivacyStatement") -> str:
    """Return rich's style of a row: the guarantee stands out, a cross-check doesn't."""
    return "bold" if row.accountant is AccountantName.EXACT else "dim"


def _note(row: "PrivacyStatement") -> str:
    """Return in words what a row's ε is, and whether it is too large to protect."""
    if row.epsilon == float("inf"):
        return "no answer at so small a δ"
    note = _NOTES[row.accountant]
    if row.accountant is AccountantName.EXACT and row.epsilon > _NO_PROTECTION:
        note += ", too large to protect"
    return note


def _added_to_delta(cost: Cost) -> str:
    """Return in words what is added to every δ, by the exact accountant.

    Always what honest rejection adds, where it is known how often updates are tested;
    for a malicious server also what breaking the cryptography adds.
    """
    from precad.accounting import ASSUMED  # noqa: PLC0415

    exact = [
        row
        for row in (*cost.real, *cost.at_cap)
        if row.accountant is AccountantName.EXACT
    ]
    largest: dict[Adversary, float] = {}
    for row in exact:
        if row.rejection_delta is None:
            return (
                "Honest rejection isn't in δ: how often updates are tested is known"
                " with --task."
            )
        so_far = largest.get(row.adversary, 0.0)
        largest[row.adversary] = max(so_far, row.rejection_delta)
    by_adversary = ", ".join(
        f"{upper(delta, 2)} ({adversary.value})" for adversary, delta in largest.items()
    )
    rejection = f"Honest rejection adds to δ at most {by_adversary}."
    if not any(row.malicious_server for row in exact):
        return rejection
    advantages = [
        row.advantage_delta for row in exact if row.advantage_delta is not None
    ]
    largest_advantage = max(advantages, default=1.0)
    return (
        f"{rejection} Breaking the cryptography adds at most"
        f" {upper(largest_advantage, 2)} for a malicious server ({ASSUMED});"
        f" {_CHEATING} against it."
    )


def _counted(run: Run, adversary: Adversary) -> str:
    """Return in words what the compositions against ``adversary`` are a number of."""
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
