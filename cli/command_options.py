"""What commands are asked that others answer: an option a field, with its help.

Apart from both, so that `--help` loads nothing of what answers.
"""

from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli import ARGUMENT, AsJson
from precad.common import frozen_kw_only_dataclass

_GROUP = click.IntRange(0, 2**20)
"""Sizes of groups that are searched (``certify.LARGEST_GROUP``)."""
GuaranteeKind = Literal["exact", "rdp", "adp", "gdp"]
"""Which guarantee of the training is used."""
Change = Literal["either", "additions", "deletions", "replacements"]
# The values of the certifier's own enums, whose modules load too slowly for the help.
UnitName = Literal["client", "record", "record-of-one-client"]
Interval = Literal["hoeffding", "bernstein"]
Confidence = Annotated[float, "Of each point's statement."]
Simultaneous = Annotated[bool, "Make the confidence hold for all points at once."]
Header = Literal["yes", "no"] | None
"""Whether the first line of CSV files is a header; None where it shows."""
AskedHeader = Annotated[
    Header,
    "Whether CSV files begin with a header; where numbers leave it open, say it.",
]
TrueLabels = Annotated[Path | None, "True labels: report certified accuracy."]
Plot = Annotated[Path | None, "Write a picture to this .png, .pdf or .svg file."]


@frozen_kw_only_dataclass
class Wishes:
    """What a training is to be: the options of `precad plan` and `precad task new`."""

    records: Annotated[
        str | None, "m: records of each owner, like 10x6000 or 3x500,1200,6x40."
    ]
    owners: Annotated[int | None, "n, where --records gives one size for all."]
    unit: Annotated[
        str | None,
        "What is protected in a record's place: a name such as patient, and --records"
        " counts those; or owner, with all its records, which it trains on by itself.",
    ]
    most_records_per_unit: Annotated[
        int | None, "L: records of a patient, or other --unit, that count in a round."
    ]
    owners_per_unit: Annotated[
        int | None, "m: at how many owners one unit is at most; 1 unless given."
    ]
    local_epochs: Annotated[
        int | None, "E: with --unit owner, times through its records a round; or 1."
    ]
    local_rate: Annotated[
        float | None, "With --unit owner, the owners' own learning rate; or .1."
    ]
    local_batch: Annotated[
        int | None, "With --unit owner, records a step; all unless given."
    ]
    epsilon: Annotated[
        float | None, "ε of a record, or --unit, against one curious server: gives σ."
    ]
    noise_multiplier: Annotated[float | None, "σ, in place of --epsilon: gives ε."]
    delta: Annotated[float | None, "δ; with --records 1e-5 unless given."]
    rounds: Annotated[
        int | None, "T: rounds; with --records 200 unless given, 100 of whole owners."
    ]
    record_rate: Annotated[
        float | None,
        "p: a record is drawn with it; with --records 1/|D| of the largest, and .05 at"
        " least; more where σ would be below 1.25.",
    ]
    client_rate: Annotated[
        float | None,
        "q: an owner is drawn with it; with --records 1, unless a round takes too long.",
    ]
    record_clip: Annotated[
        float | None, "R: bound on a gradient; with --records 1 unless given."
    ]
    client_clip: Annotated[
        float | None,
        "C: bound on an owner's update; with --records by what owners can sample.",
    ]
    client_clip_per_record: Annotated[
        float | None,
        "c: bound it by c·R for each record sampled on average too, so that no owner"
        " weighs more than c times its share: 2, or 1 with --record-rate 1.",
    ]
    recipe: Annotated[
        Path | None, "How tables become numbers: a file with the [data] section."
    ]
    from_statistics: Annotated[
        Path | None,
        "With --recipe: what precad ask answer --json printed, for its centres, scales,"
        " fills and levels; and for --balance answers.",
    ]
    architecture: Annotated[Literal["logistic", "mlp"] | None, "A built-in model."]
    features: Annotated[
        str | None, "Numbers in a record; with --model its shape, like 3x32x32."
    ]
    classes: Annotated[
        int | None, "How many labels there are; 1 for a number (regression)."
    ]
    hidden: Annotated[int, "Hidden units of an mlp."] = 32
    balance: Annotated[
        str | None,
        "Weigh classes alike by their public or stated shares, like .9,.1, or with"
        " levels' names no=.9,yes=.1.",
    ]
    model: Annotated[
        str | None, "Or your own model, MODULE:NAME, called without arguments."
    ]
    weights: Annotated[
        Path | None,
        "Start from this file's weights (safetensors), which everybody has beside the"
        " task's file: public ones, or a finished training's model.safetensors.",
        "--continue",
        "--from",
    ]
    validation: Annotated[
        Literal["crypten", "proof"],
        "How norms are checked: crypten needs a dealer, a third organisation, and holds"
        " against servers that follow the protocol; proof needs the two servers alone,"
        " and one that cheats learns no more of a record (docs/cheating-server.md).",
    ] = "crypten"


@frozen_kw_only_dataclass
class PlanRequest(Wishes):
    """What `precad plan` is asked."""

    task: Annotated[Path | None, "The task (TOML), instead of its numbers one by one."]
    dimension: Annotated[int | None, "d: parameters, in place of a model."]
    malicious: Annotated[
        int | None,
        "K: owners that may submit anything; without --client-clip C is chosen for"
        " them.",
    ]
    change: Annotated[
        Literal["replacements", "additions"],
        "What the K do: honest ones turn bad, or bad ones join.",
    ] = "replacements"
    data_share: Annotated[
        float | None,
        "Also bound owners who turn bad and hold this share of --records together.",
    ]
    loss: Annotated[float, "L: expected loss on one record without attackers."] = 0.2
    tolerated_loss: Annotated[
        float, "The loss that attackers may cause at most, above L."
    ] = 0.5
    loss_bound: Annotated[float, "B: the largest value that the loss takes."] = 1.0
    as_json: AsJson


@frozen_kw_only_dataclass
class OfRelease:
    """Which released model or answer is meant."""

    config: Annotated[
        Path | None,
        "An owner's settings: its task, and its state's model.",
        "--config",
        "-c",
    ]
    task: Annotated[Path | None, "The task, where there are no settings."]
    model_file: Annotated[
        Path | None, "model.safetensors; the settings' own unless given."
    ]


@frozen_kw_only_dataclass
class OfModel(OfRelease):
    """Which trained model is meant."""

    model: Annotated[
        str | None, "Your model, MODULE:NAME, where the task's isn't built in."
    ]


@frozen_kw_only_dataclass
class OfTrainings:
    """What is asked of trained models, and how they were trained."""

    sources: Annotated[
        tuple[Path, ...], "A .npy or CSV file; folders with --runs.", ARGUMENT
    ]
    runs: Annotated[
        bool, "The paths are folders of finished runs; σ, C, R, q, T come from them."
    ]
    guarantee: Annotated[
        GuaranteeKind, "exact (tightest), rdp, adp, or gdp (a limit, not a guarantee)."
    ] = "exact"
    sampling_rate: Annotated[
        float | None, "q: a record or client is in a round with it, 0 to 1."
    ]
    noise_multiplier: Annotated[
        float | None, "Noise over a unit's bound: σ; clients' √2·σ·R/C."
    ]
    rounds: Annotated[int | None, "T: rounds of training."]
    sampling: Annotated[
        Literal["poisson"] | None,
        "A draw of a fixed size moves the sum by 2 clips: nothing is certified.",
    ]
    unit: Annotated[
        UnitName | None, "What is counted: by default client with --runs, else record."
    ]
    change: Annotated[
        Change | None,
        "either: k added, or k deleted; replacements: k honest ones turned malicious."
        " By default replacements for clients, either for records.",
    ]
    absent: Annotated[
        int,
        "Honest clients whose absence attackers can select; count among K.",
        _GROUP,
    ] = 0
    data_share: Annotated[
        float | None,
        "Of all records, what the attackers hold together at most; with --runs.",
    ]
    confidence: Confidence = 0.999
    interval: Annotated[Interval, "For scores, or for the mean over runs."] = (
        "hoeffding"
    )
    delta: Annotated[float | None, "For adp: (ε, δ) at this δ only."]
    soundness_bits: Annotated[
        int | None,
        "Add (malicious submissions)·2^−bits for validation; with --runs and clients,"
        " always. From 100 on, the least that proofs have, also what attackers find who"
        " compute 2^60 hashes, and (submissions)·2^−47.",
    ]
    attempts: Annotated[
        int, "With --soundness-bits: most attempts a round, each validated."
    ] = 20
    header: AskedHeader
    plot: Plot
    as_json: AsJson


@frozen_kw_only_dataclass
class Prediction(OfTrainings):
    """The majority vote of independently trained private models."""

    also: Annotated[
        tuple[GuaranteeKind, ...], "Compare with this guarantee too; may be repeated."
    ]
    simultaneous: Simultaneous
    form: Annotated[
        Literal["votes", "labels", "scores"] | None,
        "votes [points, classes], labels [points, models], or scores "
        "[points, models, classes] (CSV: point, model, scores).",
        "--format",
    ]
    classes: Annotated[int | None, "For labels and runs: how many classes."]
    labels: TrueLabels


@frozen_kw_only_dataclass
class Loss(OfTrainings):
    """The expected loss of a private model after so many attackers."""

    expected: Annotated[
        float | None, "A known expected loss, instead of a file.", "--loss"
    ]
    bound: Annotated[float, "B: the loss lies in [0, B]."] = 1.0
    attackers: Annotated[int, "Show bounds up to so many attackers.", _GROUP] = 10
    tau: Annotated[
        tuple[float, ...], "Fewest attackers for a τ-fold lower loss; may be repeated."
    ]


@frozen_kw_only_dataclass
class Smoothing(OfModel):
    """Predictions under changed inputs."""

    votes: Annotated[
        Path | None, "Votes [points, classes] under noise: .npy or CSV.", ARGUMENT
    ]
    sigma: Annotated[
        float | None, "Of the input noise; that of the task's objective unless given."
    ]
    data: Annotated[Path | None, "Records with labels, as for precad evaluate."]
    copies: Annotated[int, "n: fresh noisy copies of each record that count."] = 10_000
    select: Annotated[int, "n0: copies that choose the label."] = 100
    first: Annotated[int | None, "Only so many of the records."]
    draw: Annotated[
        int | None, "Which draw of the noise, to repeat one; fresh unless given."
    ]
    keep: Annotated[
        Path | None, "Keep votes as they come; another call goes on from there."
    ]
    confidence: Confidence = 0.999
    selection: Annotated[
        Path | None, "Other votes that choose labels; without, every class pays."
    ]
    simultaneous: Simultaneous
    labels: TrueLabels
    header: AskedHeader
    plot: Plot
    as_json: AsJson


CertifyRequest = Prediction | Loss | Smoothing
