"""The command itself: options, and what is printed where."""

import sys
from pathlib import Path

import click

from precad.cli.options import PATH, json_option, print_json, writable_picture
from precad.common.errors import Misconfiguration


@click.command()
@click.argument("task", type=PATH, help="The task file.")
@click.option(
    "--dataset",
    default="digits",
    help="digits or breast-cancer; or one of --data: mnist, fashion-mnist, …",
)
@click.option("--data", type=PATH, help="Folder with the data set's files; nothing is downloaded.")
@click.option(
    "--clients", type=click.IntRange(min=1), help="n: how many owners the records are dealt to."
)
@click.option("--rounds", type=click.IntRange(min=1), help="T; the task's unless given.")
@click.option("--model", help="A model of your own, MODULE:NAME, where the task's isn't built in.")
@click.option(
    "--attack",
    help="flip (against the cohort, within the bound), wraparound, oversize, garbage, or "
    "a function of your own, MODULE:NAME.",
)
@click.option(
    "--attackers", type=click.IntRange(min=1), help="How many clients attack; 1 unless given."
)
@click.option(
    "--per-client", is_flag=True, help="A real owner's code for each; slower, exact to the bit."
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Repeats a simulation; no real run takes one."
)
@click.option("--device", default="cpu", help="Where gradients are computed: cpu, cuda.")
@click.option("--plot", type=PATH, help="Picture of accuracy and ε by round: .png, .pdf or .svg.")
@click.option("--save", type=PATH, help="Rounds and summary as JSON.")
@json_option
def simulate(
    task: Path,
    dataset: str,
    data: Path | None,
    clients: int | None,
    rounds: int | None,
    model: str | None,
    attack: str | None,
    attackers: int | None,
    per_client: bool,
    seed: int | None,
    device: str,
    plot: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Play a task's whole training in one process: no servers, no TLS, no secrecy.

    The same gradients, clips, validation rule, noise, denominator and
    accountants as in a real run, with as many virtual clients as there are
    records. What it prints is simulated, and certifies nothing.

        precad simulate task.toml --clients 1000

        precad simulate task.toml --attack flip --attackers 50 --plot run.png
    """
    for option, path in (("--plot", plot), ("--save", save)):
        if path is not None and option == "--plot":
            writable_picture(path)
        if path is not None and not path.parent.is_dir():
            raise Misconfiguration(option, str(path), "there is no such folder; make it first")
    # Seconds of torch: not before the options are known to be wanted.
    from precad.cli.simulate.show import Display, conclude  # noqa: PLC0415
    from precad.client.owner_settings import own_model, own_object  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415
    from precad.simulation import SimulatedRound  # noqa: PLC0415
    from precad.simulation import simulate as play  # noqa: PLC0415
    from precad.simulation.datasets import load  # noqa: PLC0415

    out = sys.stderr if as_json else sys.stdout
    read = Task.load(task)
    records = load(dataset, data)
    own = attack is not None and ":" in attack

    def each(played: SimulatedRound, _: object) -> None:
        display.round(played)

    with Display(out, read.training.rounds if rounds is None else rounds) as display:
        training = play(
            read,
            records,
            None if model is None else own_model(model),
            clients=clients,
            rounds=rounds,
            seed=seed,
            path="per-client" if per_client else "stacked",
            attack=own_object("--attack", attack) if own and attack else attack,
            attackers=attackers,
            device=device,
            on_round=each,
        )
    if plot is not None:
        training.plot(plot)
    if save is not None:
        training.save(save)
    conclude(out, training, [str(path) for path in (plot, save) if path is not None])
    if as_json:
        print_json(training.summary())
