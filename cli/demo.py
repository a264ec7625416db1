"""The command itself: options, and what is printed where."""

import sys
import time
from pathlib import Path

import click

from precad.cli.options import PATH, json_option, print_json
from precad.common.terminal.text import say


@click.command()
@click.option(
    "--dataset",
    default="digits",
    help="digits or breast-cancer; or mnist, whose files are in --data.",
)
@click.option("--data", type=PATH, help="Folder with the data set's files; nothing is downloaded.")
@click.option(
    "--model",
    default="logistic",
    help="logistic or mlp; with mnist also cnn.",
)
@click.option("--clients", type=click.IntRange(min=1), default=10, help="How many data owners.")
@click.option("--rounds", type=click.IntRange(min=1), help="T; about 60 unless given.")
@click.option(
    "--client-rate",
    type=click.FloatRange(max=1),
    default=1.0,
    help="q: the chance that a data owner is drawn for a round.",
)
@click.option(
    "--attack",
    help="wraparound (huge, but its square wraps to 0), oversize (twice the bound), "
    "garbage (random vectors and broken uploads) or dropout (vanishes).",
)
@click.option("--attackers", type=int, help="How many data owners attack; 1 unless given.")
@click.option(
    "--validation",
    type=click.Choice(["crypten", "fss"]),
    default="crypten",
    help="How norms are checked: crypten, or fss, function secret sharing, where a server "
    "that departs from the protocol learns no more.",
)
@click.option(
    "--objective",
    help="Of a record: dp-gaussian or another of docs/robustness.md. The model is then "
    "certified against changed inputs too.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=1,
    help="Of the partition of the data; noise has none.",
)
@click.option(
    "--output", type=PATH, help="Folder for model, plot and logs; precad-demo/<time> unless given."
)
@json_option
def demo(
    dataset: str,
    data: Path | None,
    model: str,
    clients: int,
    rounds: int | None,
    client_rate: float,
    attack: str | None,
    attackers: int | None,
    validation: str,
    objective: str | None,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Train on real data with everything real: processes, TLS, gRPC, CrypTen, noise.

    Ten data owners with uneven shares of scikit-learn's handwritten digits, two servers and a
    dealer start as processes of this machine and train for about 60 rounds. You see accuracy,
    rejected submissions and the privacy spent, live; at the end a summary in plain words, a
    plot, the model and summary.json.

    Turn some data owners bad to see what that does:

        precad demo --attack wraparound --attackers 3
    """
    out = sys.stderr if as_json else sys.stdout
    # Seconds of torch: not before the options are known to be wanted.
    say(sys.stderr, "precad demo: loading torch and the data …")
    from precad.cli.local_deployment import environment_of_parts  # noqa: PLC0415
    from precad.cli.warm_starter import WarmStarter  # noqa: PLC0415

    with WarmStarter() as starter:
        # Beside this process's own loading: what the parts load is loaded once.
        starter.warm(environment_of_parts())
        import torch  # noqa: PLC0415

        from precad.cli.demo_display import Display, announce, conclude  # noqa: PLC0415
        from precad.cli.demo_run import refuse_full, run  # noqa: PLC0415
        from precad.cli.demo_scenario import make_scenario  # noqa: PLC0415

        # As each part has: they share this machine's cores, and the owners' wait is measured here.
        torch.set_num_threads(1)
        size, bad = (clients, rounds, client_rate), (attack, attackers)
        folder = output or Path("precad-demo") / time.strftime("%Y%m%d-%H%M%S")
        refuse_full(folder)
        scenario = make_scenario(dataset, model, *size, *bad, seed, validation, data, objective)
        announce(out, scenario)
        display = Display(out, scenario)
        outcome, result = run(scenario, folder, display, popen=starter)
    names = ["model.safetensors", "training.png", "summary.json", "history.csv", "logs"]
    if scenario.task.objective is not None:
        names += ["robustness.txt", "certificate.png"]
    conclude(out, outcome, result, [str(folder / name) for name in names])
    if as_json:
        print_json(result)
