"""The command itself: options, and what is printed where."""

from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from precad.cli.options import Json, print_json, writable_picture
from precad.common.errors import Misconfiguration


def simulate(
    task: Annotated[Path, Argument(help="The task file.", show_default=False)],
    *,
    dataset: Annotated[
        str, Option(help="digits or breast-cancer; or one of --data: mnist, fashion-mnist, …")
    ] = "digits",
    data: Annotated[
        Path | None, Option(help="Folder with the data set's files; nothing is downloaded.")
    ] = None,
    clients: Annotated[
        int | None, Option(min=1, help="n: how many owners the records are dealt to.")
    ] = None,
    rounds: Annotated[int | None, Option(min=1, help="T; the task's unless given.")] = None,
    model: Annotated[
        str | None,
        Option(help="A model of your own, MODULE:NAME, where the task's isn't built in."),
    ] = None,
    attack: Annotated[
        str | None,
        Option(
            help="flip (against the cohort, within the bound), wraparound, oversize, garbage, or "
            "a function of your own, MODULE:NAME."
        ),
    ] = None,
    attackers: Annotated[
        int | None, Option(min=1, help="How many clients attack; 1 unless given.")
    ] = None,
    per_client: Annotated[
        bool,
        Option("--per-client", help="A real owner's code for each; slower, exact to the bit."),
    ] = False,
    seed: Annotated[
        int | None, Option(min=0, help="Repeats a simulation; no real run takes one.")
    ] = None,
    device: Annotated[str, Option(help="Where gradients are computed: cpu, cuda.")] = "cpu",
    plot: Annotated[
        Path | None, Option(help="Picture of accuracy and ε by round: .png, .pdf or .svg.")
    ] = None,
    save: Annotated[Path | None, Option(help="Rounds and summary as JSON.")] = None,
    tensorboard: Annotated[
        Path | None, Option(help="Folder for TensorBoard's files, with precad[tensorboard].")
    ] = None,
    as_json: Json = False,
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
    from precad.client.own_code import own_model, own_object  # noqa: PLC0415
    from precad.client.tensorboard import TensorBoard  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415
    from precad.experiments.data import load  # noqa: PLC0415
    from precad.experiments.simulation import SimulatedRound  # noqa: PLC0415
    from precad.experiments.simulation import simulate as play  # noqa: PLC0415

    board = None if tensorboard is None else TensorBoard(tensorboard)
    console = Console(stderr=as_json)
    read = Task.load(task)
    records = load(dataset, data)
    own = attack is not None and ":" in attack

    def each(played: SimulatedRound, _: object) -> None:
        display.round(played)
        if board is not None:
            board(played)

    with Display(console, read.training.rounds if rounds is None else rounds) as display:
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
    conclude(console, training, [str(path) for path in (plot, save) if path is not None])
    if as_json:
        print_json(training.summary())
