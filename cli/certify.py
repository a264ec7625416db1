"""`precad certify`: what an attack on the training, or on an input, can't change.

Options become a frozen request, whose fields they are; a request a document; a document tables or
JSON.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import click

from precad.cli.options import PATH
from precad.cli.predict import config_option, model_file_option, own_model_option, task_file_option

GuaranteeKind: TypeAlias = Literal["exact", "rdp", "adp", "gdp"]
"""Which guarantee of the training is used."""
Change: TypeAlias = Literal["either", "additions", "deletions", "replacements"]
VoteFormat: TypeAlias = Literal["votes", "labels", "scores"]
# The values of the certifier's own enums, whose modules load too slowly for the help.
UnitName: TypeAlias = Literal["client", "record", "record-of-one-client"]
BoundName: TypeAlias = Literal["hoeffding", "bernstein"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The majority vote of independently trained private models."""

    sources: tuple[Path, ...]
    runs: bool
    guarantee: GuaranteeKind
    also: tuple[GuaranteeKind, ...]
    sampling_rate: float | None
    noise_multiplier: float | None
    rounds: int | None
    sampling: str | None
    unit: UnitName | None
    change: Change | None
    absent: int
    confidence: float
    simultaneous: bool
    strict: bool
    form: VoteFormat | None
    interval: BoundName
    classes: int | None
    models: int | None
    labels: Path | None
    delta: float | None
    soundness_bits: int | None
    attempts: int
    plot: Path | None
    as_json: bool

    @property
    def kinds(self) -> list[GuaranteeKind]:
        """Each guarantee asked for, once; the first one's certificates are the answer."""
        return list(dict.fromkeys([self.guarantee, *self.also]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The expected loss of a private model after so many attackers."""

    sources: tuple[Path, ...]
    runs: bool
    expected: float | None
    bound: float
    attackers: int
    tau: tuple[float, ...]
    guarantee: GuaranteeKind
    sampling_rate: float | None
    noise_multiplier: float | None
    rounds: int | None
    sampling: str | None
    unit: UnitName | None
    change: Change | None
    absent: int
    confidence: float
    interval: BoundName
    delta: float | None
    soundness_bits: int | None
    attempts: int
    plot: Path | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """Predictions under changed inputs."""

    votes: Path | None
    sigma: float | None
    data: Path | None
    config: Path | None
    task: Path | None
    model_file: Path | None
    model: str | None
    copies: int
    select: int
    first: int | None
    draw: int | None
    keep: Path | None
    confidence: float
    selection: Path | None
    simultaneous: bool
    labels: Path | None
    plot: Path | None
    as_json: bool


Request: TypeAlias = Prediction | Loss | Smoothing


@click.group()
def certify() -> None:
    """What bad owners, records or inputs can't change."""


sources_argument = click.argument(
    "sources",
    type=PATH,
    nargs=-1,
    help="A .npy or CSV file; with --runs, folders of finished runs.",
)
runs_option = click.option(
    "--runs",
    is_flag=True,
    help="The paths are folders of finished runs; σ, C, R, q, T come from them.",
)
kind_option = click.option(
    "--guarantee",
    type=click.Choice(get_args(GuaranteeKind)),
    default="exact",
    help="exact (tightest), rdp, adp, or gdp (a limit, not a guarantee).",
)
rate_option = click.option(
    "--sampling-rate", type=float, help="q: a record or client is in a round with this probability."
)
noise_option = click.option(
    "--noise-multiplier",
    type=float,
    help="Noise over one unit's bound: σ, or √2·σ·R/C for clients.",
)
rounds_option = click.option("--rounds", type=int, help="T: rounds of training.")
scheme_option = click.option("--sampling", help="Only poisson can be certified.")
unit_option = click.option(
    "--unit",
    type=click.Choice(get_args(UnitName)),
    help="What is counted; by default client with --runs and record without.",
)
change_made_option = click.option(
    "--change",
    type=click.Choice(get_args(Change)),
    help="either: k added, or k deleted; replacements: k honest ones turned malicious. By "
    "default replacements for clients, either for records.",
)
absent_option = click.option(
    "--absent",
    type=int,
    default=0,
    help="Honest clients whose absence attackers can select; they count among K.",
)
confidence_option = click.option(
    "--confidence", type=float, default=0.999, help="Of each point's statement."
)
simultaneous_option = click.option(
    "--simultaneous", is_flag=True, help="Make the confidence hold for all points at once."
)
true_labels_option = click.option(
    "--labels", type=PATH, help="True labels: report certified accuracy."
)
delta_option = click.option("--delta", type=float, help="For adp: (ε, δ) at this δ only.")
bits_option = click.option(
    "--soundness-bits",
    type=int,
    help="Add (malicious submissions)·2^−bits for validation; with --runs and clients, always.",
)
attempts_option = click.option(
    "--attempts",
    type=int,
    default=20,
    help="With --soundness-bits: most attempts of a round, each of which is validated.",
)
plot_option = click.option("--plot", type=PATH, metavar="FILE.png", help="Write a picture.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead."
)


def respond(request: Request) -> None:
    """Work out what is asked, then print it."""
    # Scientific imports take a second, which `--help` doesn't wait for.
    from precad.cli.certify_answer import answer  # noqa: PLC0415
    from precad.cli.certify_tables import show  # noqa: PLC0415

    show(request, answer(request))


@certify.command()
@sources_argument
@runs_option
@kind_option
@click.option(
    "--also",
    type=click.Choice(get_args(GuaranteeKind)),
    multiple=True,
    help="Compare with this guarantee too; may be repeated.",
)
@rate_option
@noise_option
@rounds_option
@scheme_option
@unit_option
@change_made_option
@absent_option
@confidence_option
@simultaneous_option
@click.option(
    "--strict/--as-published",
    default=True,
    help="Pay for choosing the label from the same votes (α/2L), or α/L as papers do.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(get_args(VoteFormat)),
    help="votes [points, classes], labels [points, models], or scores "
    "[points, models, classes] (CSV: point, model, scores).",
)
@click.option(
    "--interval", type=click.Choice(get_args(BoundName)), default="hoeffding", help="For scores."
)
@click.option("--classes", type=int, help="For labels and runs: how many classes.")
@click.option("--models", type=int, help="How many votes every point must have.")
@true_labels_option
@delta_option
@bits_option
@attempts_option
@plot_option
@json_option
def prediction(**given: Any) -> None:
    """Certify the majority vote of independently trained private models.

    For each point: the label, and the radius, which is the largest number of training records (or
    clients) that may be added, or deleted, without changing the majority in expectation over
    training. Where the votes are too close, the point abstains.

    \b
    Votes of 1,000 models on MNIST, trained with DP-SGD for 469 rounds:
      precad certify prediction votes.npy --sampling-rate 0.00213 \\
        --noise-multiplier 3 --rounds 469 --also rdp --plot radius.png
    Finished runs of one task (the radius counts clients):
      precad certify prediction --runs run-1 run-2 run-3
    """  # noqa: D301 -- click reads the control character
    respond(Prediction(**given))


@certify.command()
@sources_argument
@runs_option
@click.option("--loss", "expected", type=float, help="A known expected loss, instead of a file.")
@click.option("--bound", type=float, default=1.0, help="B: the loss lies in [0, B].")
@click.option("--attackers", type=int, default=10, help="Show bounds up to so many attackers.")
@click.option(
    "--tau",
    type=float,
    multiple=True,
    help="Fewest attackers for a tau-fold lower loss; may be repeated.",
)
@kind_option
@rate_option
@noise_option
@rounds_option
@scheme_option
@unit_option
@change_made_option
@absent_option
@confidence_option
@click.option(
    "--interval",
    type=click.Choice(get_args(BoundName)),
    default="hoeffding",
    help="For the mean over runs.",
)
@delta_option
@bits_option
@attempts_option
@plot_option
@json_option
def loss(**given: Any) -> None:
    """Bound the expected loss of a private model after so many attackers.

    The loss may be any bounded score: a test loss, or an attacker's own objective (its attack
    inefficacy). Losses of several independent runs, [runs] or [runs, points], give an expected
    loss with a confidence interval; --loss takes one that is known. One finished run alone gives
    no expectation: the bounds are then shown for several values of it.

    \b
    A known expected loss of 0.2, clients with √2·σ·R/C = 4:
      precad certify loss --loss 0.2 --unit client --sampling-rate 0.1 \\
        --noise-multiplier 4 --rounds 100 --tau 2
    Finished runs:
      precad certify loss --runs run-1 run-2 run-3
    """  # noqa: D301 -- click reads the control character
    respond(Loss(**given))


@certify.command()
@click.argument(
    "votes",
    type=PATH,
    required=False,
    help="Votes [points, classes] under input noise: .npy or CSV.",
)
@click.option(
    "--sigma",
    type=float,
    help="Standard deviation of the input noise; the task's objective's unless given.",
)
@click.option("--data", type=PATH, help="Records with labels, as for precad evaluate.")
@config_option
@task_file_option
@model_file_option
@own_model_option
@click.option(
    "--copies", type=int, default=10_000, help="n: fresh noisy copies of each record that count."
)
@click.option("--select", type=int, default=100, help="n0: copies that choose the label.")
@click.option("--first", type=int, help="Only so many of the records.")
@click.option(
    "--draw", type=int, help="Which draw of the noise, to repeat one; fresh unless given."
)
@click.option("--keep", type=PATH, help="Keep votes as they come; another call goes on from there.")
@confidence_option
@click.option(
    "--selection",
    type=PATH,
    help="Other votes that choose each label; without, every class pays for it.",
)
@simultaneous_option
@true_labels_option
@plot_option
@json_option
def smoothing(**given: Any) -> None:
    """Certify predictions against changed inputs (Cohen et al.'s randomised smoothing).

    Of a trained model, whose noisy votes are drawn here, or of votes in a file. The radius is an
    ℓ2 distance between inputs, in their own units; where the top class isn't sure, it abstains.

    \b
    A trained model on held-out records; broken off, it goes on where --keep ended:
      precad certify smoothing --task task.toml --model-file model.safetensors \\
        --data held-out.npz --sigma 0.25 --keep votes.jsonl --plot radius.png
    10,000 noisy copies of each input, σ = 0.5:
      precad certify smoothing noisy-votes.npy --sigma 0.5 --labels truth.npy
    """  # noqa: D301 -- click reads the control character
    respond(Smoothing(**given))
