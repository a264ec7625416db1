"""`make demo`: a private training on real data, all parts on this machine.

In the repository's root ``python -m examples.demo --help`` shows its options.
"""

import sys
import time
from pathlib import Path

from examples.demo.demo_options import DemoRequest
from examples.demo.local_processes import PARTS, environment_of_parts
from precad.cli import forked
from precad.cli.main import command, print_json
from precad.cli.start import said
from precad.common.errors import Misconfiguration, PrecadError
from precad.common.process import (
    keep_freed_buffers,
    open_closed_streams,
    take_over_stderr,
)
from precad.common.terminal import say


@command()
def demo(request: DemoRequest) -> None:
    """Train on real data with everything real: processes, TLS, gRPC, CrypTen, noise.

    Ten data owners with uneven shares of scikit-learn's handwritten digits, two servers
    and a dealer (none with --validation proof) start as processes of this machine and
    train for about 60 rounds. You see accuracy, rejected submissions and the privacy
    spent, live; at the end a summary in plain words, a plot, the model and
    summary.json.

    Turn some data owners bad to see what that does:

        make demo ARGS="--attack wraparound --attackers 3"
    """
    out = sys.stderr if request.as_json else sys.stdout
    say("precad demo: loading torch and the data …", out=sys.stderr)

    # Begins now, so that the modules of all parts are imported, once for all of them,
    # while this process imports its own.
    forked.begin(environment_of_parts(), PARTS)
    import torch  # noqa: PLC0415

    from examples.demo.demo_run import Display, announce, conclude, run  # noqa: PLC0415
    from examples.demo.demo_training import make_scenario  # noqa: PLC0415

    # As in each part: they share this machine's cores. And here it is measured how long
    # owners work, which decides how long they are waited for.
    torch.set_num_threads(1)
    folder = request.output or Path("precad-demo") / time.strftime("%Y%m%d-%H%M%S")
    if folder.exists() and any(folder.iterdir()):
        remedy = "isn't empty; name another folder or remove this one"
        raise Misconfiguration("--output", str(folder), remedy)
    scenario = make_scenario(request)
    announce(out, scenario)
    outcome, result = run(scenario, folder, Display(out, scenario))
    names = ["model.safetensors", "training.png", "summary.json", "history.csv", "logs"]
    if scenario.task.objective is not None:
        names += ["robustness.txt", "certificate.png"]
    conclude(out, outcome, result, [str(folder / name) for name in names])
    if request.as_json:
        print_json(result)


def main() -> None:
    """Run the demo as `precad` runs a command: an error is one line and a status."""
    open_closed_streams()
    take_over_stderr()
    keep_freed_buffers()
    try:
        demo(prog_name="python -m examples.demo")
    except (PrecadError, ModuleNotFoundError) as error:
        sys.exit(said(error, "make demo", "demo"))


if __name__ == "__main__":
    main()
