"""`precad certify`: what an attack on the training, or on an input, can't change."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import click

from precad.cli.main import ARGUMENT, AsJson, command
from precad.cli.owner_commands import OfModel

GuaranteeKind: TypeAlias = Literal["exact", "rdp", "adp", "gdp"]
"""Which guarantee of the training is used."""
Change: TypeAlias = Literal["either", "additions", "deletions", "replacements"]
# The values of the certifier's own enums, whose modules load too slowly for the help.
UnitName: TypeAlias = Literal["client", "record", "record-of-one-client"]
Interval: TypeAlias = Literal["hoeffding", "bernstein"]
Confidence: TypeAlias = Annotated[float, "Of each point's statement."]
Simultaneous: TypeAlias = Annotated[bool, "Make the confidence hold for all points at once."]
Header: TypeAlias = Literal["yes", "no"] | None
"""Whether the first line of CSV files is a header; None where it shows."""
AskedHeader: TypeAlias = Annotated[
    Header, "Whether CSV files begin with a header; where numbers leave it open, say it."
]
TrueLabels: TypeAlias = Annotated[Path | None, "True labels: report certified accuracy."]
Plot: TypeAlias = Annotated[Path | None, "Write a picture to this .png, .pdf or .svg file."]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfTrainings:
    """What is asked of trained models, and how they were trained."""

    sources: Annotated[tuple[Path, ...], "A .npy or CSV file; folders with --runs.", ARGUMENT]
    runs: Annotated[bool, "The paths are folders of finished runs; σ, C, R, q, T come from them."]
    guarantee: Annotated[
        GuaranteeKind, "exact (tightest), rdp, adp, or gdp (a limit, not a guarantee)."
    ] = "exact"
    sampling_rate: Annotated[float | None, "q: a record or client is in a round with it, 0 to 1."]
    noise_multiplier: Annotated[float | None, "Noise over a unit's bound: σ; clients' √2·σ·R/C."]
    rounds: Annotated[int | None, "T: rounds of training."]
    sampling: Annotated[str | None, "Only poisson can be certified."]
    unit: Annotated[UnitName | None, "What is counted: by default client with --runs, else record."]
    change: Annotated[
        Change | None,
        "either: k added, or k deleted; replacements: k honest ones turned malicious. By "
        "default replacements for clients, either for records.",
    ]
    absent: Annotated[int, "Honest clients whose absence attackers can select; count among K."] = 0
    confidence: Confidence = 0.999
    interval: Annotated[Interval, "For scores, or for the mean over runs."] = "hoeffding"
    delta: Annotated[float | None, "For adp: (ε, δ) at this δ only."]
    soundness_bits: Annotated[
        int | None,
        "Add (malicious submissions)·2^−bits for validation; with --runs and clients, always.",
    ]
    attempts: Annotated[int, "With --soundness-bits: most attempts a round, each validated."] = 20
    header: AskedHeader
    plot: Plot
    as_json: AsJson


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(OfTrainings):
    """The majority vote of independently trained private models."""

    also: Annotated[tuple[GuaranteeKind, ...], "Compare with this guarantee too; may be repeated."]
    simultaneous: Simultaneous
    form: Annotated[
        Literal["votes", "labels", "scores"] | None,
        "votes [points, classes], labels [points, models], or scores "
        "[points, models, classes] (CSV: point, model, scores).",
        "--format",
    ]
    classes: Annotated[int | None, "For labels and runs: how many classes."]
    labels: TrueLabels


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(OfTrainings):
    """The expected loss of a private model after so many attackers."""

    expected: Annotated[float | None, "A known expected loss, instead of a file.", "--loss"]
    bound: Annotated[float, "B: the loss lies in [0, B]."] = 1.0
    attackers: Annotated[int, "Show bounds up to so many attackers."] = 10
    tau: Annotated[tuple[float, ...], "Fewest attackers for a τ-fold lower loss; may be repeated."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing(OfModel):
    """Predictions under changed inputs."""

    votes: Annotated[Path | None, "Votes [points, classes] under noise: .npy or CSV.", ARGUMENT]
    sigma: Annotated[float | None, "Of the input noise; that of the task's objective unless given."]
    data: Annotated[Path | None, "Records with labels, as for precad evaluate."]
    copies: Annotated[int, "n: fresh noisy copies of each record that count."] = 10_000
    select: Annotated[int, "n0: copies that choose the label."] = 100
    first: Annotated[int | None, "Only so many of the records."]
    draw: Annotated[int | None, "Which draw of the noise, to repeat one; fresh unless given."]
    keep: Annotated[Path | None, "Keep votes as they come; another call goes on from there."]
    confidence: Confidence = 0.999
    selection: Annotated[Path | None, "Other votes that choose labels; without, every class pays."]
    simultaneous: Simultaneous
    labels: TrueLabels
    header: AskedHeader
    plot: Plot
    as_json: AsJson


Request: TypeAlias = Prediction | Loss | Smoothing


@click.group()
def certify() -> None:
    """What bad owners, records or inputs can't change."""


def respond(request: Request) -> None:
    """Work out what is asked, then print it."""
    from precad.cli.certify_answer import answer  # noqa: PLC0415 -- SciPy takes a second

    answer(request)


@command(certify)
def prediction(request: Prediction) -> None:
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
    respond(request)


@command(certify)
def loss(request: Loss) -> None:
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
    respond(request)


@command(certify)
def smoothing(request: Smoothing) -> None:
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
    respond(request)
