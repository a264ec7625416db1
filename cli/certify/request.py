"""What `precad certify` is asked: each option once, and one frozen request a command.

A request's fields are its command's options, in the order of the help, and its docstring is the
help's text: Typer reads both from the class.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from typer import Argument, Option

from precad.cli.trained import Config, ModelFile, OwnModel, TaskFile


class GuaranteeKind(StrEnum):
    """Which guarantee of the training is used. Typer takes no lists of a Literal."""

    EXACT = "exact"
    RDP = "rdp"
    ADP = "adp"
    GDP = "gdp"


Change: TypeAlias = Literal["either", "additions", "deletions", "replacements"]
VoteFormat: TypeAlias = Literal["votes", "labels", "scores"]
# The values of the certifier's own enums, whose modules load too slowly for the help.
UnitName: TypeAlias = Literal["client", "record", "record-of-one-client"]
BoundName: TypeAlias = Literal["hoeffding", "bernstein"]

Sources = Annotated[
    list[Path] | None, Argument(help="A .npy or CSV file; with --runs, folders of finished runs.")
]
Runs = Annotated[
    bool,
    Option("--runs", help="The paths are folders of finished runs; σ, C, R, q, T come from them."),
]
Kind = Annotated[
    GuaranteeKind, Option(help="exact (tightest), rdp, adp, or gdp (a limit, not a guarantee).")
]
Rate = Annotated[
    float | None, Option(help="q: a record or client is in a round with this probability.")
]
Noise = Annotated[
    float | None, Option(help="Noise over one unit's bound: σ, or √2·σ·R/C for clients.")
]
Rounds = Annotated[int | None, Option(help="T: rounds of training.")]
Scheme = Annotated[str | None, Option(help="Only poisson can be certified.")]
Unit = Annotated[
    UnitName | None,
    Option(help="What is counted; by default client with --runs and record without."),
]
ChangeMade = Annotated[
    Change | None,
    Option(
        help="either: k added, or k deleted; replacements: k honest ones turned malicious. By "
        "default replacements for clients, either for records."
    ),
]
Absent = Annotated[
    int,
    Option(help="Honest clients whose absence attackers can select; they count among K."),
]
Confidence = Annotated[float, Option(help="Of each point's statement.")]
Simultaneous = Annotated[
    bool, Option("--simultaneous", help="Make the confidence hold for all points at once.")
]
TrueLabels = Annotated[
    Path | None, Option("--labels", help="True labels: report certified accuracy.")
]
Delta = Annotated[float | None, Option(help="For adp: (ε, δ) at this δ only.")]
Bits = Annotated[
    int | None,
    Option(
        help="Add (malicious submissions)·2^−bits for validation; with --runs and clients, always."
    ),
]
Attempts = Annotated[
    int,
    Option(help="With --soundness-bits: most attempts of a round, each of which is validated."),
]
Plot = Annotated[Path | None, Option(help="Write a picture.", metavar="FILE.png")]
Json = Annotated[bool, Option("--json", help="Print one JSON document instead.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
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

    sources: Sources = None
    runs: Runs = False
    guarantee: Kind = GuaranteeKind.EXACT
    also: Annotated[
        list[GuaranteeKind] | None, Option(help="Compare with this guarantee too; may be repeated.")
    ] = None
    sampling_rate: Rate = None
    noise_multiplier: Noise = None
    rounds: Rounds = None
    sampling: Scheme = None
    unit: Unit = None
    change: ChangeMade = None
    absent: Absent = 0
    confidence: Confidence = 0.999
    simultaneous: Simultaneous = False
    strict: Annotated[
        bool,
        Option(
            "--strict/--as-published",
            help="Pay for choosing the label from the same votes (α/2L), or α/L as papers do.",
        ),
    ] = True
    form: Annotated[
        VoteFormat | None,
        Option(
            "--format",
            help="votes [points, classes], labels [points, models], or scores "
            "[points, models, classes] (CSV: point, model, scores).",
        ),
    ] = None
    interval: Annotated[BoundName, Option(help="For scores.")] = "hoeffding"
    classes: Annotated[int | None, Option(help="For labels and runs: how many classes.")] = None
    models: Annotated[int | None, Option(help="How many votes every point must have.")] = None
    labels: TrueLabels = None
    delta: Delta = None
    soundness_bits: Bits = None
    attempts: Attempts = 20
    plot: Plot = None
    as_json: Json = False

    @property
    def kinds(self) -> list[GuaranteeKind]:
        """Each guarantee asked for, once; the first one's certificates are the answer."""
        return list(dict.fromkeys([self.guarantee, *(self.also or [])]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
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

    sources: Sources = None
    runs: Runs = False
    expected: Annotated[
        float | None, Option("--loss", help="A known expected loss, instead of a file.")
    ] = None
    bound: Annotated[float, Option(help="B: the loss lies in [0, B].")] = 1.0
    attackers: Annotated[int, Option(help="Show bounds up to so many attackers.")] = 10
    tau: Annotated[
        list[float] | None,
        Option(help="Fewest attackers for a tau-fold lower loss; may be repeated."),
    ] = None
    guarantee: Kind = GuaranteeKind.EXACT
    sampling_rate: Rate = None
    noise_multiplier: Noise = None
    rounds: Rounds = None
    sampling: Scheme = None
    unit: Unit = None
    change: ChangeMade = None
    absent: Absent = 0
    confidence: Confidence = 0.999
    interval: Annotated[BoundName, Option(help="For the mean over runs.")] = "hoeffding"
    delta: Delta = None
    soundness_bits: Bits = None
    attempts: Attempts = 20
    plot: Plot = None
    as_json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
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

    votes: Annotated[
        Path | None, Argument(help="Votes [points, classes] under input noise: .npy or CSV.")
    ] = None
    sigma: Annotated[
        float | None,
        Option(help="Standard deviation of the input noise; the task's objective's unless given."),
    ] = None
    data: Annotated[Path | None, Option(help="Records with labels, as for precad evaluate.")] = None
    config: Config = None
    task: TaskFile = None
    model_file: ModelFile = None
    model: OwnModel = None
    copies: Annotated[int, Option(help="n: fresh noisy copies of each record that count.")] = 10_000
    select: Annotated[int, Option(help="n0: copies that choose the label.")] = 100
    first: Annotated[int | None, Option(help="Only so many of the records.")] = None
    draw: Annotated[
        int | None, Option(help="Which draw of the noise, to repeat one; fresh unless given.")
    ] = None
    keep: Annotated[
        Path | None, Option(help="Keep votes as they come; another call goes on from there.")
    ] = None
    confidence: Confidence = 0.999
    selection: Annotated[
        Path | None,
        Option(help="Other votes that choose each label; without, every class pays for it."),
    ] = None
    simultaneous: Simultaneous = False
    labels: TrueLabels = None
    plot: Plot = None
    as_json: Json = False


Request: TypeAlias = Prediction | Loss | Smoothing
