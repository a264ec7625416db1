"""Accounts as one JSON document, or as tables for people."""

import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from precad.accounting.adversaries import PLANNING_QUANTILE, Adversary, Basis, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import (
    ASSUMED,
    JointStatement,
    PrivacyStatement,
    guarantees,
    together,
)
from precad.common.terminal import Table, say

Named: TypeAlias = tuple[str, Run, float, int]
"""A run's name, the run, its δ and its cap."""

# e^20 is half a billion: no ratio of odds that large protects anybody.
_NO_PROTECTION = 20.0
MANY = 12
"""Of more runs than that only what they cost together is computed, and each is named."""
_RECORDS = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
_CHEATING = (
    "who is counted, availability, whole owners' privacy and robustness aren't claimed against it."
)
_STYLES = {True: "bold", False: "dim"}
"""Of a guarantee, and of a cross-check."""
_NOTES = {
    AccountantName.EXACT: "the guarantee",
    AccountantName.RDP: "upper bound, cross-check",
    AccountantName.GDP_CLT: "asymptotic, not a guarantee",
}


def document(runs: Sequence[Named]) -> dict[str, Any]:
    """``guarantees`` and ``at_cap`` of one run; of several, those of each, and of all together.

    Of more than ``MANY`` runs each is only named.
    """
    if len(runs) == 1:
        return _one(runs[0])
    each = [{"source": named[0], **({} if len(runs) > MANY else _one(named))} for named in runs]
    real, capped = _joint(runs)
    return {
        "runs": each,
        "together": [statement.to_json() for statement in real],
        "together_at_cap": [statement.to_json() for statement in capped],
    }


def _one(named: Named) -> dict[str, Any]:
    _, run, delta, _ = named
    return {
        "guarantees": [statement.to_json() for statement in guarantees(run, delta)],
        "at_cap": [statement.to_json() for statement in _at_cap(named)],
    }


def _at_cap(named: Named) -> tuple[PrivacyStatement, ...]:
    """Record-level guarantees at the cap, nothing where that is what was given."""
    _, run, delta, cap = named
    return () if run.basis is Basis.CAP else guarantees(run.at_cap(cap), delta, _RECORDS)


def _joint(
    runs: Sequence[Named],
) -> tuple[tuple[JointStatement, ...], tuple[JointStatement, ...]]:
    """All runs together as they are, and their record-level guarantees at their caps."""
    delta = min(delta for _, _, delta, _ in runs)
    real = together([run for _, run, _, _ in runs], delta)
    at_caps = [run.at_cap(cap) for _, run, _, cap in runs]
    return real, together(at_caps, delta, adversaries=_RECORDS)


def show(runs: Sequence[Named]) -> None:
    """Print tables."""
    for named in runs if len(runs) <= MANY else ():
        _show_one(named, whole=len(runs) == 1)
    if len(runs) > 1:
        _show_joint(runs)


def _show_one(named: Named, *, whole: bool) -> None:
    name, run, delta, _ = named
    statements, capped = guarantees(run, delta), _at_cap(named)
    title = f"Privacy at δ = {delta:g}" if whole else f"{name}: privacy at δ = {delta:g}"
    say(sys.stdout, title, style="bold")
    for adversary in Adversary:
        rows = [s for s in statements if s.adversary is adversary]
        if not rows:
            say(
                sys.stdout,
                f"\n{adversary.value}: give --record-clip, --client-clip, "
                "--dimension and --fractional-bits, or --task, to see it.",
            )
            continue
        first = rows[0]
        what = "a whole client" if adversary is Adversary.CLIENT_LEVEL else "one record"
        whom = (f"\n{adversary.value}", "bold")
        say(sys.stdout, whom, f": {what}, against {first.against}")
        say(
            sys.stdout,
            f"noise multiplier {first.noise_multiplier:.4g}, "
            f"{first.compositions} {_counted(run, adversary)}",
        )
        table = Table("accountant", ">ε", ">μ", "what it is")
        for row in rows:
            exact = row.accountant is AccountantName.EXACT
            mu = "" if row.mu is None else f"{row.mu:.4g}"
            cells = (row.accountant.value, f"{row.epsilon:.4g}", mu, _note(row))
            table.add(*cells, style=_STYLES[exact])
        table.show(sys.stdout)
        for row in capped:
            if row.adversary is adversary and row.accountant is AccountantName.EXACT:
                say(
                    sys.stdout,
                    f"exact ε = {row.epsilon:.4g} at {row.compositions} participations, "
                    f"{Basis.CAP.words}"
                    + (f"; against {row.against}" if row.malicious_server else ""),
                )
    say(sys.stdout, f"\n{_rejection([*statements, *capped])}\n")


def _show_joint(runs: Sequence[Named]) -> None:
    real, capped = _joint(runs)
    say(sys.stdout, f"All {len(runs)} together, at δ = {real[0].delta:g}", style="bold")
    table = Table("against", "accountant", "what T_i is", ">ε", "what it is")
    for row in (*real, *capped):
        exact = row.accountant is AccountantName.EXACT
        if row.basis is Basis.CAP and not exact:
            continue
        cells = (row.adversary.value, row.accountant.value, row.basis.value)
        table.add(*cells, f"{row.epsilon:.4g}", _note(row), style=_STYLES[exact])
    table.show(sys.stdout)
    say(sys.stdout, _rejection([*real, *capped]))
    if len(runs) > MANY:
        say(sys.stdout, f"Of more than {MANY} the account of each is left out: ask for one alone.")
    say(
        sys.stdout,
        "True of tasks that were fixed beforehand. Where the next one was chosen after seeing the "
        "last one's models, only a limit that was set when the owner's account opened holds.",
    )


def _note(row: PrivacyStatement | JointStatement) -> str:
    if row.epsilon == float("inf"):
        return "no answer at so small a δ"
    exact = row.accountant is AccountantName.EXACT
    large = ", too large to protect" if exact and row.epsilon > _NO_PROTECTION else ""
    return _NOTES[row.accountant] + large


def _rejection(rows: Sequence[PrivacyStatement | JointStatement]) -> str:
    """What honest rejection adds to every δ, in words."""
    exact = [row for row in rows if row.accountant is AccountantName.EXACT]
    added = [row.rejection_delta for row in exact if row.rejection_delta is not None]
    if len(added) < len(exact):
        return "Honest rejection isn't in δ: how often updates are tested is known with --task."
    said = f"Honest rejection adds at most {max(added):.1e} to δ."
    if not any(row.malicious_server for row in exact):
        return said
    broken = [row.advantage_delta for row in exact if row.advantage_delta is not None]
    return (
        f"{said} Breaking the cryptography adds at most {max(broken, default=1.0):.1e} for a "
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
            return f"participations ({basis.words})"
