"""`precad audit`: canaries in trainings, and what an adversary really learns of them."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from precad.cli.options import PATH, json_of, json_option, print_json
from precad.common.errors import Misconfiguration
from precad.common.terminal.progress import bar
from precad.common.terminal.text import Table, say

if TYPE_CHECKING:
    from precad.experiments.audit.run import Repetition
    from precad.experiments.audit.simulated import Build
    from precad.experiments.audit.verdict import Verdict

REFUTED = 1


@click.command()
@click.option(
    "--canaries",
    type=click.IntRange(min=50),
    default=2000,
    help="m: records that count or not by a fair coin, in each training.",
)
@click.option(
    "--repetitions",
    type=click.IntRange(min=1),
    default=1,
    help="Trainings, each with canaries of its own; more prove more.",
)
@click.option(
    "--dataset",
    help="Audit the demo's task for digits or breast-cancer, in place of one made for it.",
)
@click.option(
    "--build",
    default="sound",
    help="What runs: sound, or a build broken on purpose that the audit must find: "
    "half-noise, other-silent, redrawn, unclipped.",
)
@click.option(
    "--deployed",
    is_flag=True,
    help="Train by real processes on this machine: dealer, both servers, all owners.",
)
@click.option(
    "--certificate",
    is_flag=True,
    help="Attack certified predictions in place of ε; --build is sound or unchecked.",
)
@click.option(
    "--presence",
    is_flag=True,
    help="Canaries are whole owners, by simulation; --build is sound or unchecked.",
)
@click.option(
    "--models",
    type=click.IntRange(min=40),
    default=200,
    help="With --certificate: trainings of each ensemble, which vote.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Repeats an audit; of --deployed the canaries and coins alone.",
)
@click.option("--save", type=PATH, help="All that was found, as JSON.")
@json_option
def audit(
    canaries: int,
    repetitions: int,
    dataset: str | None,
    build: str,
    deployed: bool,
    certificate: bool,
    presence: bool,
    models: int,
    seed: int | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Attack trainings as the stated adversaries may, and bound ε from below.

    A consenting owner's canaries are records that count, or count as zero, by
    coin flips. Who sees the models, and a server that takes its own noise off,
    guess the coins. So many right guesses would be rare if the statement held:
    that bounds the true ε from below, with 99.99 % confidence. A bound that
    passes the stated ε refutes the statement; the command then exits with 1.

        precad audit

        precad audit --build other-silent

        precad audit --dataset digits --deployed

    With --certificate owners turn bad, as many as a certified prediction is said
    to withstand, and push against it; a prediction that they flip fails the
    audit too.

        precad audit --certificate

    With --presence the canaries are owners, whose updates count or are zero:
    what the client-level guarantee hides.
    """
    if save is not None and not save.parent.is_dir():
        raise Misconfiguration("--save", str(save), "there is no such folder; make it first")
    from precad.experiments.audit.run import audit as judged  # noqa: PLC0415
    from precad.experiments.audit.run import planned  # noqa: PLC0415
    from precad.experiments.audit.simulated import Build  # noqa: PLC0415
    from precad.experiments.simulation.draws import checked_seed  # noqa: PLC0415

    first = checked_seed(seed)
    out = sys.stderr if as_json else sys.stdout
    say(out, f"seed {first}")
    if certificate:
        from precad.cli.audit.certificate import attack  # noqa: PLC0415

        document, refuted = attack(models, build, first, out)
        _end(document, save, as_json=as_json, refuted=refuted)
        return
    if presence:
        from precad.experiments.audit.presence import BUILDS, audit_presence  # noqa: PLC0415
        from precad.experiments.audit.run import SIGNIFICANCE  # noqa: PLC0415

        if build not in BUILDS:
            raise Misconfiguration(
                "--build", build, f"with --presence use one of {', '.join(BUILDS)}"
            )
        one = audit_presence(canaries, first, SIGNIFICANCE, loose=BUILDS[build])
        _show(out, (one,))
        told = {"seed": first, "build": build, "simulated": True, "verdicts": [one.to_json()]}
        _end(told, save, as_json=as_json, refuted=one.refuted)
        return
    known = {each.value: each for each in Build}
    if build not in known:
        raise Misconfiguration("--build", build, f"use one of {', '.join(known)}")
    trainings = _trainings(dataset, canaries, repetitions, known[build], first, deployed=deployed)
    task = next(_trainings(dataset, canaries, 1, None, first)).trained.task
    plans = planned(task, canaries, repetitions)
    for statement, power in plans.items():
        say(
            out,
            f"{statement.name}: ε = {statement.epsilon:.2f} is stated. A sound build should give "
            f"about {power.expected:.2f}, half the noise {power.expected_of_half:.2f}, which is "
            f"caught in {power.caught:.0%} of {power.trials} trials.",
        )
    with bar("trainings", repetitions, sys.stderr) as line:
        found = judged(plans, trainings, on_repetition=lambda _: line.update())
    _show(out, found)
    document = {
        "seed": first,
        "build": build,
        "dataset": dataset,
        "repetitions": repetitions,
        "simulated": not deployed,
        "verdicts": [verdict.to_json() for verdict in found],
    }
    _end(document, save, as_json=as_json, refuted=any(verdict.refuted for verdict in found))


def _end(document: dict[str, Any], save: Path | None, *, as_json: bool, refuted: bool) -> None:
    """Write what was found; fail where a statement doesn't hold."""
    if save is not None:
        save.write_text(json_of(document, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print_json(document)
    if refuted:
        sys.exit(REFUTED)


def _trainings(
    dataset: str | None,
    canaries: int,
    repetitions: int,
    build: "Build | None",
    seed: int,
    *,
    deployed: bool = False,
) -> "Iterator[Repetition]":
    """Each trained when it is asked for; without a build, only planned."""
    from precad.experiments.audit.demo import demo_audit  # noqa: PLC0415
    from precad.experiments.audit.designed import LOUDER, designed  # noqa: PLC0415
    from precad.experiments.audit.run import Repetition  # noqa: PLC0415
    from precad.experiments.audit.simulated import Audited, train  # noqa: PLC0415

    for number in range(repetitions):
        made = (
            designed(canaries, seed + number, LOUDER)
            if dataset is None
            else demo_audit(dataset, canaries, seed + number)
        )
        if build is None:
            trained = Audited(made.task, [], {}, 1.0)
        elif deployed:
            from precad.cli.audit.deployed import train as play  # noqa: PLC0415

            trained = play(made, build_of=build)
        else:
            trained = train(
                made.task, made.shares, made.canaries, build_of=build, seed=seed + number
            )
        yield Repetition(trained, made.shares, made.canaries)


def _show(out: TextIO, found: "tuple[Verdict, ...]") -> None:
    table = Table("who looks", ">canaries", ">right guesses", ">ε at least", ">ε stated", "")
    for verdict in found:
        guesses = verdict.guesses
        table.add(
            verdict.statement.name,
            str(guesses.canaries),
            f"{guesses.correct} of {guesses.made}",
            f"{verdict.by_family:.2f}",
            f"{verdict.epsilon:.2f}",
            "REFUTED" if verdict.refuted else "not refuted",
        )
    table.show(out)
    for verdict in found:
        if verdict.refuted:
            say(
                out,
                f"audit failed: {verdict.statement.name} stated ε = {verdict.epsilon:.4f}; what "
                f"was learnt needs at least {verdict.by_family:.4f}",
            )
