"""The command itself: options, and what is printed where."""

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from precad.cli.options import print_json


class Validation(StrEnum):
    """The task's ``validation``."""

    CRYPTEN = "crypten"
    FSS = "fss"


def demo(
    dataset: Annotated[
        str, Option(help="digits or breast-cancer; or mnist, whose files are in --data.")
    ] = "digits",
    data: Annotated[
        Path | None, Option(help="Folder with the data set's files; nothing is downloaded.")
    ] = None,
    model: Annotated[
        str,
        Option(
            help="logistic or mlp; with mnist also cnn, or logistic regression on what each owner "
            "computes: features (histograms of gradients) or scattering (of wavelets)."
        ),
    ] = "logistic",
    clients: Annotated[int, Option(min=1, help="How many data owners.")] = 10,
    rounds: Annotated[int | None, Option(min=1, help="T; about 60 unless given.")] = None,
    client_rate: Annotated[
        float, Option(max=1, help="q: the chance that a data owner is drawn for a round.")
    ] = 1.0,
    attack: Annotated[
        str | None,
        Option(
            help="wraparound (huge, but its square wraps to 0), oversize (twice the bound), "
            "garbage (random vectors and broken uploads) or dropout (vanishes)."
        ),
    ] = None,
    attackers: Annotated[
        int | None, Option(help="How many data owners attack; 1 unless given.")
    ] = None,
    validation: Annotated[
        Validation,
        Option(
            help="How norms are checked: crypten, or fss, function secret sharing, where a server "
            "that departs from the protocol learns no more."
        ),
    ] = Validation.CRYPTEN,
    objective: Annotated[
        str | None,
        Option(
            help="Of a record: dp-gaussian or another of docs/robustness.md. The model is then "
            "certified against changed inputs too."
        ),
    ] = None,
    seed: Annotated[int, Option(min=0, help="Of the partition of the data; noise has none.")] = 1,
    output: Annotated[
        Path | None,
        Option(help="Folder for model, plot and logs; precad-demo/<time> unless given."),
    ] = None,
    json_output: Annotated[
        bool, Option("--json", help="One JSON document on stdout and nothing else there.")
    ] = False,
) -> None:
    """Train on real data with everything real: processes, TLS, gRPC, CrypTen, noise.

    Ten data owners with uneven shares of scikit-learn's handwritten digits, two servers and a
    dealer start as processes of this machine and train for about 60 rounds. You see accuracy,
    rejected submissions and the privacy spent, live; at the end a summary in plain words, a
    plot, the model and summary.json.

    Turn some data owners bad to see what that does:

        precad demo --attack wraparound --attackers 3
    """
    console = Console(stderr=json_output)
    # Seconds of torch: not before the options are known to be wanted.
    Console(stderr=True).print("precad demo: loading torch and the data …", highlight=False)
    from precad.cli.demo.warm import WarmStarter  # noqa: PLC0415
    from precad.experiments.local import environment_of_parts  # noqa: PLC0415

    with WarmStarter() as starter:
        # Beside this process's own loading: what the parts load is loaded once.
        starter.warm(environment_of_parts())
        import torch  # noqa: PLC0415

        from precad.cli.demo.run import prepare_folder, run  # noqa: PLC0415
        from precad.cli.demo.scenario import make_scenario  # noqa: PLC0415
        from precad.cli.demo.show import Display, announce, conclude  # noqa: PLC0415

        # As each part has: they share this machine's cores, and the owners' wait is measured here.
        torch.set_num_threads(1)
        size, bad = (clients, rounds, client_rate), (attack, attackers)
        scenario = make_scenario(
            dataset, model, *size, *bad, seed, validation.value, data, objective
        )
        folder = output or Path("precad-demo") / time.strftime("%Y%m%d-%H%M%S")
        prepare_folder(folder)
        announce(console, scenario)
        display = Display(console, scenario)
        outcome, result = run(scenario, folder, display, popen=starter)
    names = ["model.safetensors", "training.png", "summary.json", "history.csv", "logs"]
    if scenario.task.objective is not None:
        names += ["robustness.txt", "certificate.png"]
    conclude(console, outcome, result, [str(folder / name) for name in names])
    if json_output:
        print_json(result)
