"""`precad audit`: canaries in trainings, and what an adversary really learns of them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precad.cli.options import PATH, json_of, json_option, print_json
from precad.common.errors import Misconfiguration
from precad.common.terminal.progress import bar
from precad.common.terminal.text import say

if TYPE_CHECKING:
    from precad.audit.builds import Build
    from precad.audit.designed import Designed
    from precad.audit.run import Repetition

REFUTED = 1


@click.command()
@click.option(
    "--canaries",
    type=click.IntRange(min=20),
    default=2000,
    help="m: records that count or not by a fair coin; with --presence owners.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=4,
    help="Of a task made for auditing, each with coins of its own; more prove more.",
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
    "half-noise, other-silent, redrawn, unclipped; of owners half-noise, unchecked.",
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
    help="Canaries are whole owners: what hides whether one is there.",
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
    rounds: int,
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

        precad audit --presence --deployed --canaries 20 --rounds 50
    """
    if save is not None and not save.parent.is_dir():
        raise Misconfiguration("--save", str(save), "there is no such folder; make it first")
    from precad.audit.builds import OF_PRESENCE, OF_RECORDS  # noqa: PLC0415
    from precad.audit.run import audit as judged  # noqa: PLC0415
    from precad.audit.run import planned  # noqa: PLC0415
    from precad.cli.audit.shown import say_plan, show  # noqa: PLC0415
    from precad.simulation.draws import checked_seed  # noqa: PLC0415

    first = checked_seed(seed)
    out = sys.stderr if as_json else sys.stdout
    say(out, f"seed {first}")
    if certificate:
        from precad.cli.audit.certificate import attack  # noqa: PLC0415

        document, refuted = attack(models, build, first, out)
        _end(document, save, as_json=as_json, refuted=refuted)
        return
    builds = {each.value: each for each in (OF_PRESENCE if presence else OF_RECORDS)}
    if build not in builds:
        raise Misconfiguration("--build", build, f"use one of {', '.join(builds)}")
    runs = builds[build]
    if presence:
        from precad.cli.audit.presence import attack as attack_presence  # noqa: PLC0415

        document, refuted = attack_presence(canaries, rounds, runs, first, out, deployed=deployed)
        _end(document, save, as_json=as_json, refuted=refuted)
        return

    def made(number: int) -> "Designed":
        return _designed(dataset, canaries, rounds, first + number)

    plans = planned(made(0), repetitions, build=runs)
    for statement, power in plans.items():
        say_plan(out, statement, power, runs)
    trainings = (
        _trained(made(number), runs, first + number, deployed=deployed)
        for number in range(repetitions)
    )
    with bar("trainings", repetitions, sys.stderr) as line:
        found = judged(plans, trainings, on_repetition=lambda _: line.update())
    show(out, found)
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


def _designed(dataset: str | None, canaries: int, rounds: int, seed: int) -> "Designed":
    """The demo's task, or one made for auditing, with its canaries."""
    from precad.audit.demo import demo_audit  # noqa: PLC0415
    from precad.audit.designed import LOUDER, designed  # noqa: PLC0415

    if dataset is None:
        return designed(canaries, rounds, seed, LOUDER)
    return demo_audit(dataset, canaries, seed)


def _trained(made: "Designed", build: "Build", seed: int, *, deployed: bool) -> "Repetition":
    from precad.audit.run import Repetition  # noqa: PLC0415
    from precad.audit.simulated import train  # noqa: PLC0415

    if deployed:
        from precad.cli.audit.deployed import train as play  # noqa: PLC0415

        trained = play(made, build_of=build)
    else:
        trained = train(made.task, made.shares, made.canaries, build_of=build, seed=seed)
    return Repetition(trained, made.shares, made.canaries)
