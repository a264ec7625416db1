"""What a plan says, as a table with sentences, or as JSON."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from precad.accounting.accountant import AccountantName
from precad.accounting.advantages import ASSUMED
from precad.accounting.cheating import against_a_cheating_server
from precad.accounting.guarantees import PrivacyStatement, Run, guarantees
from precad.accounting.planning import VACUOUS, Change, Setting, SettingVerdict
from precad.accounting.search import Plan
from precad.common.terminal.text import Table, say

_SHOWN = 14


def statements(made: Plan) -> tuple[PrivacyStatement, ...]:
    """The exact statements of the chosen setting."""
    if made.best is None:
        return ()
    task, delta = made.best.task, made.wanted.delta
    planned = guarantees(Run.of(task), delta, accountants=(AccountantName.EXACT,))
    cheating = against_a_cheating_server(task, delta)
    return planned if cheating is None else (*planned, cheating)


def document(
    made: Plan, statements: tuple[PrivacyStatement, ...], plot: Path | None
) -> dict[str, Any]:
    """One JSON object; what leaves floating point becomes null when it is printed."""
    wanted = asdict(made.wanted) | {"records": list(made.wanted.records)}
    return {
        "status": "planned",
        "wanted": wanted,
        "best": _flat(made.best) if made.best else None,
        "statements": [each.to_json() for each in statements],
        "other": _flat(made.other) if made.other else None,
        "task": _flat(made.given) if made.given else None,
        "settings": [_flat(setting) for setting in made.settings],
        "refused": [asdict(each) for each in made.refused],
        "tried": made.tried,
        "plot": str(plot) if plot else None,
    }


def _flat(setting: Setting) -> dict[str, Any]:
    """One flat object a setting: its task's numbers, then what they give and cost."""
    task = setting.task
    values = asdict(setting)
    del values["task"]
    return {
        **task.privacy.model_dump(exclude={"delta", "epsilon_limit"}),
        **task.training.model_dump(),
        "fractional_bits": task.fractional_bits,
        **values,
    }


def show(made: Plan, statements: tuple[PrivacyStatement, ...], plot: Path | None) -> None:
    """Print the plan for people."""
    _say_wanted(made)
    _table(made).show(sys.stdout)
    _say_best(made, statements)
    _say_other(made)
    if made.given is not None:
        _say_given(made.given)
    if made.refused:
        first = made.refused[0]
        say(
            sys.stdout,
            f"{len(made.refused)} more no task can have; the first: {first.reason}",
            dim=True,
        )
    if plot is not None:
        say(sys.stdout, f"The trade-offs are drawn in {plot}.")


def _say_wanted(made: Plan) -> None:
    wanted = made.wanted
    sizes, robustness = wanted.records, wanted.robustness
    held = (
        _owners(len(sizes), "owner") + f" of {sizes[0]:,} records"
        if len(set(sizes)) == 1
        else f"{len(sizes):,} owners of {min(sizes):,} to {max(sizes):,} records"
    )
    robust = (
        "no robustness (no statement about a whole owner)"
        if not wanted.robust
        else f"loss at most {robustness.tolerated_loss:g} with "
        f"{_owners(robustness.malicious, 'malicious owner')} ({robustness.change.value})"
    )
    say(
        sys.stdout,
        f"Planned for {held}: ε ≤ {wanted.epsilon:g} at δ = {wanted.delta:g} against one curious "
        f"server; {robust}. {made.tried} p, q and T were tried.",
    )
    say(
        sys.stdout,
        "accuracy: forecast for MNIST-like data, to order settings; loss: at most this with "
        f"{robustness.malicious} malicious joining / replacing honest ones; "
        "MB: uploads of one owner.",
        dim=True,
    )


def _owners(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _table(made: Plan) -> Table:
    numbers = ("", "p", "q", "T", "σ", "R", "C", "η", "ε", "accuracy", "loss", "MB")
    table = Table(*(f">{name}" for name in numbers), "verdict")
    for setting in made.settings[:_SHOWN]:
        _add_row(table, setting, chosen=setting is made.best)
    if made.best is not None and made.best not in made.settings[:_SHOWN]:
        _add_row(table, made.best, chosen=True)
    return table


def _add_row(table: Table, setting: Setting, *, chosen: bool) -> None:
    privacy, training = setting.task.privacy, setting.task.training
    meets = setting.verdict is SettingVerdict.MEETS
    table.add(
        "→" if chosen else "",
        *(f"{privacy.record_rate:g}", f"{privacy.client_rate:g}", str(training.rounds)),
        *(f"{privacy.noise_multiplier:.4g}", f"{privacy.record_clip:g}"),
        *(f"{privacy.client_clip:g}", f"{training.learning_rate:g}"),
        f"{setting.epsilon:.3g}",
        f"{setting.forecast.accuracy:.1%}",
        f"{setting.loss_additions:.2f}/{setting.loss_replacements:.2f}",
        f"{setting.upload_bytes / 1e6:.3g}",
        setting.verdict.value,
        **({"bold": True} if chosen else {} if meets else {"dim": True}),
    )


def _say_best(made: Plan, statements: tuple[PrivacyStatement, ...]) -> None:
    best = made.best
    if best is None:
        say(
            sys.stdout,
            "No setting meets everything. Allow a larger ε, tolerate fewer malicious owners or a "
            "higher loss, enrol more owners, or train fewer parameters.",
        )
        return
    privacy, training = best.task.privacy, best.task.training
    say(
        sys.stdout,
        "Planned: the least uploads among those about as accurate as the best. Into the task:",
        bold=True,
    )
    say(
        sys.stdout,
        f"    privacy.record_clip = {privacy.record_clip}\n"
        f"    privacy.client_clip = {privacy.client_clip}\n"
        f"    privacy.noise_multiplier = {privacy.noise_multiplier}\n"
        f"    privacy.record_rate = {privacy.record_rate}\n"
        f"    privacy.client_rate = {privacy.client_rate}\n"
        f"    training.learning_rate = {training.learning_rate}\n"
        f"    training.rounds = {training.rounds}\n"
        f"    fractional_bits = {best.task.fractional_bits}",
    )
    say(
        sys.stdout,
        f"It costs an owner up to {best.participations} participations, {best.gradients:,} "
        f"per-record gradients and {best.upload_bytes / 1e6:,.1f} MB. What keeps the forecast "
        f"from more is above all {best.forecast.worst}.",
    )
    for each in statements:
        what = f"at {each.compositions:,} participations" if each.malicious_server else "planned"
        broken = each.advantage_delta
        added = "" if broken is None else f"; δ and {broken:.0e} more ({ASSUMED})"
        say(
            sys.stdout,
            f"  {what}: ε = {each.epsilon:.3g} ({each.adjacency}), {each.against}{added}",
        )
    _say_robustness(best)


def _say_robustness(best: Setting) -> None:
    asked = best.robustness
    bounds = {change: best.worst_loss(change) for change in Change}
    said = ", ".join(
        f"{bound:.3g} by {change.value}"
        + (" (says nothing)" if bound > VACUOUS * asked.loss_bound else "")
        for change, bound in bounds.items()
    )
    some = _owners(asked.malicious, "malicious owner")
    say(
        sys.stdout,
        f"With {some} a loss of {asked.loss:g} becomes at most {said}, by the "
        "central limit theorem: planned, not a certificate.",
    )


def _say_other(made: Plan) -> None:
    other, best = made.other, made.best
    if other is None:
        return
    here = f"{best.forecast.accuracy:.1%}" if best else "none that meets everything"
    there = f"{other.forecast.accuracy:.1%}"
    if not made.wanted.robust:
        say(
            sys.stdout,
            "No robustness was chosen. Tolerating one malicious owner (--malicious 1) is forecast "
            f"at {there} instead of {here}: {other.verdict.value}. --no-robustness leaves this "
            "out.",
        )
    else:
        say(
            sys.stdout,
            f"What robustness costs: without it (--no-robustness) {there} are forecast instead of "
            f"{here}, and nothing bounds what a single bad owner does.",
        )


def _say_given(given: Setting) -> None:
    say(
        sys.stdout,
        f"The task's own setting: {given.verdict.value}; ε = {given.epsilon:.3g}, forecast "
        f"{given.forecast.accuracy:.1%}, kept down by {given.forecast.worst}; loss at most "
        f"{given.loss_additions:.2f} by additions, {given.loss_replacements:.2f} by replacements.",
    )
