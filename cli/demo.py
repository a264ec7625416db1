"""`precad demo`: live progress on a terminal for people, and the end in plain words."""

import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO

import click
from rich.console import Group

from precad.cli import forked
from precad.cli.local_deployment import environment_of_parts
from precad.cli.main import AsJson, command, print_json
from precad.common.errors import Misconfiguration
from precad.common.terminal import Bar, Table, plain, say, upper

if TYPE_CHECKING:
    from precad.cli.demo_training import Outcome, RoundRow, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRequest:
    """What `precad demo` is asked."""

    dataset: Annotated[str, "digits, breast-cancer, or mnist, with its files in --data."] = "digits"
    data: Annotated[Path | None, "Folder with the data set's files; nothing is downloaded."] = None
    model: Annotated[str, "logistic or mlp; with mnist also cnn."] = "logistic"
    clients: Annotated[int, "How many data owners.", click.IntRange(min=1)] = 10
    rounds: Annotated[int | None, "T; about 60 unless given.", click.IntRange(min=1)] = None
    client_rate: Annotated[float, "q: an owner is drawn with it.", click.FloatRange(max=1)] = 1.0
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
    output: Annotated[Path | None, "For model, plot, logs; precad-demo/<time> unless given."] = None
    as_json: AsJson = False


@command()
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

    # Beside this process's own loading: what the parts load is loaded once.
    forked.begin(environment_of_parts())
    import torch  # noqa: PLC0415

    from precad.cli.demo_run import run  # noqa: PLC0415
    from precad.cli.demo_training import make_scenario  # noqa: PLC0415

    # As each part has: they share this machine's cores, and the owners' wait is measured here.
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


PLAIN_EVERY = 10
PLAIN_S = 5.0
"""Between lines about one wait, where nothing can be redrawn."""
MEANINGLESS = 100.0
"""An ε above it is shown as such: e^ε is no bound on anything."""


class Display(Bar):
    """Progress of a run. On a terminal it redraws; elsewhere it prints a line now and then."""

    def __init__(self, out: TextIO, scenario: "Scenario") -> None:
        self._rounds = scenario.task.training.rounds
        self._recent: deque[RoundRow] = deque(maxlen=8)
        self._doing = ""
        self._since = self._said = time.monotonic()
        super().__init__("round", self._rounds, out, beneath=self._shown)

    def say(self, text: str) -> None:
        """A line that stays, above what is redrawn."""
        say(self.console, text)

    def doing(self, text: str) -> None:
        """What happens now, with the seconds since it began; elsewhere a line now and then."""
        now = time.monotonic()
        if text.split(":", maxsplit=1)[0] != self._doing.split(":")[0]:
            self._since, self._said = now, now - PLAIN_S
        if self.disable and text != self._doing and now - self._said >= PLAIN_S:
            self._said = now
            self.say(text)
        self._doing = text

    def rounds_begin(self) -> None:
        """What the parts took to start is no measure of the time that is left."""
        self.doing("all have enrolled: the first round")
        self.count_from_now()

    def round(self, row: "RoundRow") -> None:
        """Show a finished round."""
        self._recent.append(row)
        self._since = time.monotonic()
        self._doing = f"round {min(row.number + 1, self._rounds)}: owners train, servers add up"
        self.at(row.number)
        if self.disable and (row.number % PLAIN_EVERY == 0 or row.number == 1):
            accepted = f"accepted {row.accepted} of {row.cohort}"
            counts = ", ".join([accepted, *_reasons(row.rejected)])
            self.say(
                f"round {row.number:>3}/{self._rounds}: accuracy {_percent(row.accuracy)}, "
                f"{counts}, ε {upper(row.epsilon_server, 3)} (a server looks) "
                f"{upper(row.epsilon_clients, 3)} (only clients look)"
            )

    def _shown(self) -> Group:
        doing = plain(f"{self._doing} ({time.monotonic() - self._since:.0f} s)", "dim")
        if not self._recent:
            return Group(doing)
        table = Table(">round", ">accuracy", ">accepted", "rejected", ">ε server", ">ε clients")
        for row in list(self._recent):
            accepted, reasons = f"{row.accepted}/{row.cohort}", ", ".join(_reasons(row.rejected))
            epsilon = f"{row.epsilon_server:.3f}", f"{row.epsilon_clients:.3f}"
            table.add(str(row.number), _percent(row.accuracy), accepted, reasons or "–", *epsilon)
        return Group(doing, table.drawn)


def announce(out: TextIO, scenario: "Scenario") -> None:
    """What is about to run."""
    privacy, data = scenario.task.privacy, scenario.dataset
    servers = "two servers and a dealer" if scenario.task.has_dealer else "two servers"
    say(
        out,
        ("precad demo", "bold"),
        f": {len(scenario.data)} data owners and {servers}, each its own process, train ",
        (scenario.model, "bold"),
        " on ",
        (data.name, "bold"),
        f" ({len(data.train_y):,} records; {scenario.task.dimension:,} parameters).\n"
        f"R = {privacy.record_clip:g}, C = {privacy.client_clip:g}, σ = "
        f"{privacy.noise_multiplier:g} a server, p = {privacy.record_rate:g}, "
        f"q = {privacy.client_rate:g}, η = {scenario.task.training.learning_rate:g}, "
        f"T = {scenario.task.training.rounds}, δ = {privacy.delta:g}",
    )
    if scenario.bad:
        names = ", ".join(client.name for client in scenario.bad)
        say(out, f"{len(scenario.bad)} of them bad: {scenario.attack} ({names})", style="yellow")


def conclude(out: TextIO, outcome: "Outcome", result: dict[str, Any], files: list[str]) -> None:
    """The run in plain words."""
    equal = result["model_digest_a"] == result["model_digest_b"]
    rejected = ", ".join(_reasons(result["rejected"]))
    say(
        out,
        ("\ndone\n", "bold"),
        "The model gets ",
        (f"{result['accuracy']:.1%}", "bold"),
        f" of {len(outcome.scenario.dataset.test_y)} held-out records right after "
        f"{result['version']} rounds and {result['seconds']:.0f} s. No server ever saw an update.\n"
        "Both servers hold the same model: ",
        ("yes", "") if equal else ("NO", "red"),
        f" ({result['model_digest_a'][:16]}…).\n"
        f"{result['accepted']} submissions counted; "
        f"{f'rejected or absent: {rejected}' if rejected else 'none was rejected'}. "
        f"Honest ones rejected: {result['honest_rejected']}.\n\n"
        f"Guaranteed, as (ε, δ = {result['delta']:g})-differential privacy (zero-out):",
    )
    _bounds(result).show(out)
    if "robustness" in result:
        say(out, f"\n{result['robustness']['words']}\n")
    say(
        out,
        f"The paper's central-limit formula says {result['epsilon_clt_server']:.2f} for the "
        "first line: an approximation, not a guarantee.\nThe accuracy is measured on public "
        "data; it carries no privacy guarantee of its own.\n\n"
        f"Files: {', '.join(files)}",
    )


def _bounds(result: dict[str, Any]) -> Table:
    bounds = Table("who looks", ">ε exact", "what is protected")
    server, clients = result["epsilon_exact_server"], result["epsilon_exact_clients"]
    bounds.add("one curious server and any other clients", upper(server, 3), "any one record")
    if (malicious := result.get("epsilon_exact_malicious_server")) is not None:
        cap = f"any one record, at the cap of {result['version']} rounds"
        bounds.add("one malicious server and any other clients", upper(malicious, 3), cap)
    bounds.add("other clients only", upper(clients, 3), "any one record")
    level = result["epsilon_exact_client_level"]
    shown, whole = "none", "a whole data owner (too large to bound what a bad one can do)"
    if level is not None and level > MEANINGLESS:
        shown = f"over {MEANINGLESS:g}"
    elif level is not None:
        shown, whole = upper(level, 3), "a whole data owner (bounds what a bad one can do)"
    bounds.add("anyone who sees the models; servers honest", shown, whole)
    return bounds


def _reasons(rejected: Mapping[str, int]) -> list[str]:
    return [f"{n} {reason}" for reason, n in rejected.items()]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
