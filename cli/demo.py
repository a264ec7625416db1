"""`precad demo`: options, and what is printed where."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli import forked
from precad.cli.options import AsJson, print_json, with_options
from precad.common.terminal import say


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What `precad demo` is asked."""

    dataset: Annotated[str, "digits or breast-cancer; or mnist, whose files are in --data."] = (
        "digits"
    )
    data: Annotated[Path | None, "Folder with the data set's files; nothing is downloaded."] = None
    model: Annotated[str, "logistic or mlp; with mnist also cnn."] = "logistic"
    clients: Annotated[int, "How many data owners.", click.IntRange(min=1)] = 10
    rounds: Annotated[int | None, "T; about 60 unless given.", click.IntRange(min=1)] = None
    client_rate: Annotated[
        float, "q: the chance that an owner is drawn for a round.", click.FloatRange(max=1)
    ] = 1.0
    attack: Annotated[
        str | None,
        "wraparound (huge, but its square wraps to 0), oversize (twice the bound), "
        "garbage (random vectors and broken uploads) or dropout (vanishes).",
    ] = None
    attackers: Annotated[int | None, "How many data owners attack; 1 unless given."] = None
    validation: Annotated[
        Literal["crypten", "proof"],
        "How norms are checked: crypten, with a dealer, or proof, by the owners' own proofs: two "
        "servers and no dealer, and a server that departs from the protocol learns no more.",
    ] = "crypten"
    objective: Annotated[
        str | None,
        "Of a record: dp-gaussian or another of docs/robustness.md. The model is then "
        "certified against changed inputs too.",
    ] = None
    seed: Annotated[int, "Of the partition; noise has none.", click.IntRange(min=0)] = 1
    output: Annotated[
        Path | None, "Folder for model, plot and logs; precad-demo/<time> unless given."
    ] = None
    as_json: AsJson = False


@click.command()
@with_options
def demo(request: DemoRequest) -> None:
    """Train on real data with everything real: processes, TLS, gRPC, CrypTen, noise.

    Ten data owners with uneven shares of scikit-learn's handwritten digits, two servers and a
    dealer (none with --validation proof) start as processes of this machine and train for about
    60 rounds. You see accuracy, rejected submissions and the privacy spent, live; at the end a
    summary in plain words, a plot, the model and summary.json.

    Turn some data owners bad to see what that does:

        precad demo --attack wraparound --attackers 3
    """
    out = sys.stderr if request.as_json else sys.stdout
    say(sys.stderr, "precad demo: loading torch and the data …")
    # Seconds of torch: not before the options are known to be wanted.
    from precad.cli.local_deployment import environment_of_parts  # noqa: PLC0415

    # Beside this process's own loading: what the parts load is loaded once.
    forked.begin(environment_of_parts())
    import torch  # noqa: PLC0415

    from precad.cli.demo_display import Display, announce, conclude  # noqa: PLC0415
    from precad.cli.demo_run import refuse_full, run  # noqa: PLC0415
    from precad.cli.demo_scenario import make_scenario  # noqa: PLC0415

    # As each part has: they share this machine's cores, and the owners' wait is measured here.
    torch.set_num_threads(1)
    folder = request.output or Path("precad-demo") / time.strftime("%Y%m%d-%H%M%S")
    refuse_full(folder)
    scenario = make_scenario(request)
    announce(out, scenario)
    outcome, result = run(scenario, folder, Display(out, scenario))
    names = ["model.safetensors", "training.png", "summary.json", "history.csv", "logs"]
    if scenario.task.objective is not None:
        names += ["robustness.txt", "certificate.png"]
    conclude(out, outcome, result, [str(folder / name) for name in names])
    if request.as_json:
        print_json(result)
