"""`precad certify`: what an attack on the training, or on an input, can't change."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precad.cli.report import exit_on_error

if TYPE_CHECKING:
    from precad.common.certify.runs import Ensemble, PrivacyCost

app = typer.Typer(
    help="What bad owners, records or inputs can't change.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class GuaranteeKind(StrEnum):
    """Which guarantee of the training is used."""

    EXACT = "exact"
    RDP = "rdp"
    ADP = "adp"
    GDP = "gdp"


class UnitKind(StrEnum):
    """What the radius counts."""

    CLIENT = "client"
    RECORD = "record"
    RECORD_OF_ONE_CLIENT = "record-of-one-client"


class Change(StrEnum):
    """What the attacker does to the training data."""

    EITHER = "either"
    ADDITIONS = "additions"
    DELETIONS = "deletions"
    REPLACEMENTS = "replacements"


class VoteFormat(StrEnum):
    """What a file of votes holds."""

    VOTES = "votes"
    LABELS = "labels"
    SCORES = "scores"


class Inequality(StrEnum):
    """Which bound turns mean scores into confidence bounds."""

    HOEFFDING = "hoeffding"
    BERNSTEIN = "bernstein"


Sources = Annotated[
    list[Path] | None,
    typer.Argument(
        help="A .npy or CSV file; with --runs, folders of finished runs.", show_default=False
    ),
]
Runs = Annotated[
    bool,
    typer.Option(
        "--runs", help="The paths are folders of finished runs; σ, C, R, q, T come from them."
    ),
]
Kind = Annotated[
    GuaranteeKind,
    typer.Option(help="exact (tightest), rdp, adp, or gdp (a limit, not a guarantee)."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--sampling-rate", help="q: a record or client is in a round with this probability."
    ),
]
Noise = Annotated[
    float | None,
    typer.Option(
        "--noise-multiplier", help="Noise over one unit's bound: σ, or √2·σ·R/C for clients."
    ),
]
Rounds = Annotated[int | None, typer.Option("--rounds", help="T: rounds of training.")]
Scheme = Annotated[str | None, typer.Option("--sampling", help="Only poisson can be certified.")]
UnitOption = Annotated[
    UnitKind | None,
    typer.Option(
        "--unit",
        help="What is counted; by default client with --runs and record without.",
        show_default=False,
    ),
]
Confidence = Annotated[float, typer.Option(help="Of each point's statement.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Write a picture.", metavar="FILE.png")]
Delta = Annotated[float | None, typer.Option("--delta", help="For adp: (ε, δ) at this δ only.")]
Bits = Annotated[
    int | None,
    typer.Option(
        "--soundness-bits",
        help="Add (malicious submissions)·2^−bits for validation; with --runs and clients, always.",
    ),
]
ChangeOption = Annotated[
    Change,
    typer.Option(
        "--change",
        help="either: k added, or k deleted; replacements: k honest ones turned malicious.",
    ),
]
TrueLabels = Annotated[
    Path | None, typer.Option("--labels", help="True labels: report certified accuracy.")
]


def _setting(
    sources: list[Path] | None,
    runs: bool,
    unit: UnitKind | None,
    *,
    bits: int | None,
    sampling: str | None,
    rate: float | None,
    noise: float | None,
    rounds: int | None,
) -> dict[str, Any]:
    """The ensemble (or None), the unit, the mechanism, the soundness bits and the joint cost."""
    from precad.cli import certify_input  # noqa: PLC0415 -- scientific imports take a second
    from precad.common.certify.runs import Unit  # noqa: PLC0415
    from precad.common.errors import Misconfiguration  # noqa: PLC0415

    group: Ensemble | None = None
    cost: tuple[PrivacyCost, ...] = ()
    if runs:
        if not sources:
            raise Misconfiguration("runs", "none", "name the folders of finished runs")
        if bits is not None:
            raise Misconfiguration("--soundness-bits", bits, "leave it out: it comes from the runs")
        group = certify_input.ensemble(sources)
        cost = group.privacy_cost()
    chosen = Unit((unit or (UnitKind.CLIENT if runs else UnitKind.RECORD)).value)
    if group is not None and chosen is Unit.CLIENT:
        bits = group.inputs.malicious_submission_soundness_bits
    mechanism = certify_input.mechanism_of(
        group, chosen, sampling=sampling, rate=rate, noise=noise, rounds=rounds
    )
    return {"group": group, "unit": chosen, "mechanism": mechanism, "bits": bits, "cost": cost}


@app.command()
def prediction(
    sources: Sources = None,
    *,
    runs: Runs = False,
    guarantee: Kind = GuaranteeKind.EXACT,
    also: Annotated[
        list[GuaranteeKind] | None,
        typer.Option("--also", help="Compare with this guarantee too; may be repeated."),
    ] = None,
    sampling_rate: Rate = None,
    noise_multiplier: Noise = None,
    rounds: Rounds = None,
    sampling: Scheme = None,
    unit: UnitOption = None,
    change: ChangeOption = Change.EITHER,
    confidence: Confidence = 0.999,
    simultaneous: Annotated[
        bool,
        typer.Option("--simultaneous", help="Make the confidence hold for all points at once."),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Pay for choosing the label from the same votes (α/2L)."),
    ] = False,
    form: Annotated[
        VoteFormat | None,
        typer.Option(
            "--format",
            help="votes [points, classes], labels [points, models], or scores "
            "[points, models, classes] (CSV: point, model, scores).",
            show_default=False,
        ),
    ] = None,
    inequality: Annotated[
        Inequality, typer.Option("--interval", help="For scores.")
    ] = Inequality.HOEFFDING,
    classes: Annotated[
        int | None, typer.Option(help="For labels and runs: how many classes.")
    ] = None,
    models: Annotated[
        int | None, typer.Option(help="How many votes every point must have.")
    ] = None,
    labels: TrueLabels = None,
    delta: Delta = None,
    soundness_bits: Bits = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
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
    with exit_on_error():
        from rich.console import Console  # noqa: PLC0415

        from precad.cli import certify_input, certify_show  # noqa: PLC0415
        from precad.common.certify import certify_predictions  # noqa: PLC0415
        from precad.common.certify.plot import plot_certified_accuracy  # noqa: PLC0415
        from precad.common.errors import Misconfiguration  # noqa: PLC0415

        setting = _setting(
            sources,
            runs,
            unit,
            bits=soundness_bits,
            sampling=sampling,
            rate=sampling_rate,
            noise=noise_multiplier,
            rounds=rounds,
        )
        group, mechanism = setting["group"], setting["mechanism"]
        if group is not None:
            intervals, voters, total = certify_input.vote_intervals(
                group.votes(classes),
                confidence=confidence,
                simultaneous=simultaneous,
                strict=strict,
            )
        else:
            if not sources or len(sources) != 1:
                raise Misconfiguration(
                    "votes", len(sources or []), "give one file of votes or scores"
                )
            intervals, voters, total = certify_input.intervals_of(
                sources[0],
                form and form.value,
                confidence=confidence,
                classes=classes,
                models=models,
                simultaneous=simultaneous,
                strict=strict,
                bound=inequality.value,
            )
        truth = certify_input.true_labels(labels, len(intervals.labels))
        correct = None if truth is None else intervals.labels == truth
        kinds = dict.fromkeys([guarantee, *(also or [])])
        guarantees = [
            certify_input.guarantee_of(
                kind.value,
                mechanism,
                delta=delta,
                soundness_bits=setting["bits"],
                replacements=change is Change.REPLACEMENTS,
            )
            for kind in kinds
        ]
        directions = certify_input.directions_of(change.value)
        certificates = [certify_predictions(intervals, one, directions) for one in guarantees]
        results = certificates[0].results()
        units = certify_show.units_of(setting["unit"])
        if plot is not None:
            plot_certified_accuracy(
                plot,
                certificates,
                correct,
                units,
                f"{len(results):,} points, votes of {voters:,} models, confidence {confidence:g}",
            )
        if as_json:
            certify_show.print_json(
                {
                    "certificate": "prediction",
                    "guarantee": guarantee.value,
                    "asymptotic": guarantees[0].asymptotic,
                    "unit": setting["unit"].value,
                    "change": change.value,
                    "confidence": confidence,
                    "simultaneous": simultaneous,
                    "strict": strict,
                    "models": voters,
                    "classes": total,
                    "mechanism": certify_show.mechanism_json(mechanism),
                    "soundness_bits": setting["bits"],
                    "runs": certify_show.runs_json(group, setting["cost"]),
                    "abstained": int((~certificates[0].certified).sum()),
                    "comparison": certify_show.comparison_json(certificates, correct),
                    "points": certify_show.points_json(results),
                }
            )
            return
        console = Console()
        source = "from the runs' ledgers" if group else "as given"
        certify_show.show_mechanism(console, mechanism, setting["unit"].value, source)
        scope = "all points together" if simultaneous else "each point"
        console.print(
            f"{voters:,} models voted on {len(results):,} points, {total} classes; confidence "
            f"{confidence:g} for {scope}. Radius: {certify_show.CHANGES[change.value]}."
        )
        if any(one.asymptotic for one in guarantees):
            console.print("GDP-CLT is a limit for many rounds: its radii are not guaranteed.")
        certify_show.show_accuracy(console, certificates, correct, units)
        certify_show.show_points(console, results, f"radius ({units})")
        if group is not None:
            certify_show.show_cost(console, group, setting["cost"])
        if plot is not None:
            console.print(f"Picture: {plot}")


@app.command()
def loss(
    sources: Sources = None,
    *,
    runs: Runs = False,
    expected: Annotated[
        float | None, typer.Option("--loss", help="A known expected loss, instead of a file.")
    ] = None,
    bound: Annotated[float, typer.Option(help="B: the loss lies in [0, B].")] = 1.0,
    attackers: Annotated[int, typer.Option(help="Show bounds up to so many attackers.")] = 10,
    tau: Annotated[
        list[float] | None,
        typer.Option(help="Fewest attackers for a tau-fold lower loss; may be repeated."),
    ] = None,
    guarantee: Kind = GuaranteeKind.EXACT,
    sampling_rate: Rate = None,
    noise_multiplier: Noise = None,
    rounds: Rounds = None,
    sampling: Scheme = None,
    unit: UnitOption = None,
    change: ChangeOption = Change.EITHER,
    confidence: Confidence = 0.999,
    inequality: Annotated[
        Inequality, typer.Option("--interval", help="For the mean over runs.")
    ] = Inequality.HOEFFDING,
    delta: Delta = None,
    soundness_bits: Bits = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
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
    with exit_on_error():
        from precad.cli import certify_input, certify_loss, certify_show  # noqa: PLC0415
        from precad.common.errors import Misconfiguration  # noqa: PLC0415

        setting = _setting(
            sources,
            runs,
            unit,
            bits=soundness_bits,
            sampling=sampling,
            rate=sampling_rate,
            noise=noise_multiplier,
            rounds=rounds,
        )
        group = setting["group"]
        if expected is None and group is None and (not sources or len(sources) != 1):
            raise Misconfiguration("losses", len(sources or []), "give one file, --loss or --runs")
        if expected is not None and sources and not runs:
            raise Misconfiguration("--loss", expected, "give a file of losses or --loss, not both")
        interval = certify_loss.expectation(
            group,
            sources[0] if sources and not runs else None,
            expected,
            bound=bound,
            confidence=confidence,
            inequality=inequality.value,
        )
        promise = certify_input.guarantee_of(
            guarantee.value,
            setting["mechanism"],
            delta=delta,
            soundness_bits=setting["bits"],
            replacements=change is Change.REPLACEMENTS,
        )
        directions = certify_input.directions_of(change.value)
        report = certify_loss.loss_report(
            interval, promise, directions, bound=bound, attackers=attackers, ratios=tau or []
        )
        if plot is not None:
            certify_loss.plot_report(plot, report, certify_show.units_of(setting["unit"]))
        if as_json:
            certify_show.print_json(
                {
                    "certificate": "loss",
                    "guarantee": guarantee.value,
                    "asymptotic": promise.asymptotic,
                    "unit": setting["unit"].value,
                    "change": change.value,
                    "bound": bound,
                    "confidence": confidence if interval is not None and interval.runs else None,
                    "mechanism": certify_show.mechanism_json(setting["mechanism"]),
                    "soundness_bits": setting["bits"],
                    "runs": certify_show.runs_json(group, setting["cost"]),
                    **certify_loss.report_json(report),
                }
            )
            return
        certify_loss.show_report(
            report,
            setting,
            confidence=confidence,
            change=change.value,
            asymptotic=promise.asymptotic,
        )
        if plot is not None:
            typer.echo(f"Picture: {plot}")


@app.command()
def smoothing(
    votes: Annotated[
        Path,
        typer.Argument(
            help="Votes [points, classes] under input noise: .npy or CSV.", show_default=False
        ),
    ],
    *,
    sigma: Annotated[
        float, typer.Option(help="Standard deviation of the input noise.", show_default=False)
    ],
    confidence: Confidence = 0.999,
    selection: Annotated[
        Path | None,
        typer.Option(help="Other votes that choose each label; without, every class pays for it."),
    ] = None,
    simultaneous: Annotated[
        bool,
        typer.Option("--simultaneous", help="Make the confidence hold for all points at once."),
    ] = False,
    labels: TrueLabels = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Certify predictions against changed inputs (Cohen et al.'s randomised smoothing).

    The radius is an ℓ2 distance between inputs, in their own units.

    \b
    10,000 noisy copies of each input, σ = 0.5:
      precad certify smoothing noisy-votes.npy --sigma 0.5 --labels truth.npy
    """  # noqa: D301 -- click reads the control character
    with exit_on_error():
        from rich.console import Console  # noqa: PLC0415

        from precad.cli import certify_input, certify_show  # noqa: PLC0415
        from precad.common.certify import (  # noqa: PLC0415
            ConfidenceBudget,
            average_certified_radius,
            certify_smoothing,
        )
        from precad.common.certify.intervals import vote_counts  # noqa: PLC0415
        from precad.common.certify.plot import plot_smoothing  # noqa: PLC0415

        counts = vote_counts(certify_input.read_array("votes", votes))
        budget = ConfidenceBudget(confidence, counts.shape[1], len(counts) if simultaneous else 1)
        other = None if selection is None else certify_input.read_array("selection", selection)
        certificates = certify_smoothing(counts, sigma, budget, other)
        truth = certify_input.true_labels(labels, len(counts))
        counted = certificates.certified
        if truth is not None:
            counted = counted & (certificates.labels == truth)
        acr = average_certified_radius(certificates.radius, counted)
        results = certificates.results()
        if plot is not None:
            plot_smoothing(plot, certificates, counted, known=truth is not None, noise=sigma)
        if as_json:
            certify_show.print_json(
                {
                    "certificate": "smoothing",
                    "sigma": sigma,
                    "confidence": confidence,
                    "simultaneous": simultaneous,
                    "abstained": int((~certificates.certified).sum()),
                    "average_certified_radius": acr,
                    "points": certify_show.points_json(results),
                }
            )
            return
        console = Console()
        console.print(
            f"Input noise σ = {sigma:g}, {int(counts[0].sum()):,} noisy copies of each of "
            f"{len(counts):,} inputs; confidence {confidence:g}. Average certified radius {acr:.4f}"
            + (" (right predictions only)." if truth is not None else ".")
        )
        certify_show.show_points(console, results, "radius (ℓ2)")
        if plot is not None:
            console.print(f"Picture: {plot}")
