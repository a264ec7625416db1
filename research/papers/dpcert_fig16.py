"""DP-CERT Fig.

16: attacks by FGSM on the model alone; and by PGD on the smoothed one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from precad.client.gradients.noisy_votes import VoteSampling, sample_votes
from research.papers.dpcert_models import (
    BASELINES,
    COLOURS,
    SETTINGS,
    certified,
    grouped,
    lower_cells,
    model_of,
)
from research.robustness.attack import attacked
from research.robustness.certify import CONFIDENCE, Model
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

STRENGTHS = (0.0005, 0.01, 0.1, 0.5, 1.0)
"""In ℓ∞, as in the paper."""
MULTIPLES = (0.999, 1.5, 2.0, 3.0)
"""Of the certified radius, in which PGD looks; the first is inside."""
FRESH = 1000
"""Noisy copies that judge an attack."""
DEVIATIONS = 4.0
"""Of the votes' difference, by which another label must lead: then it surely has more.
"""
_SETTINGS: Mapping[Scale, Settings] = {
    scale: {
        **SETTINGS[scale],
        "strengths": list(STRENGTHS),
        "multiples": list(MULTIPLES),
    }
    for scale in Scale
}


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Accuracy under FGSM by strength; how many certified points PGD turns, by multiple."""
    model, data, _ = model_of(settings, around)
    found = certified(model, data, settings, around)
    some = np.flatnonzero(found.found.certified)
    labels = torch.from_numpy(found.found.labels[some])
    turned = []
    for multiple in settings["multiples"]:
        if not len(some):
            turned.append(0)
            continue
        radius = torch.from_numpy(multiple * found.found.radius[some])
        sigma, seed = settings["sigma"], settings["seed"]
        moved = attacked(model.module, model.x[some], labels, radius, sigma, seed=seed)
        how = VoteSampling(sigma=sigma, selection=1, copies=FRESH, draw=seed + 1)
        turned.append(int(_surely_other(model, moved, labels, how).sum()))
    return {
        "accuracy": round(model.accuracy, 5),
        "fgsm": [round(fgsm(model, strength), 5) for strength in settings["strengths"]],
        "certified": len(some),
        "points": len(model.y),
        "turned": turned,
    }


def fgsm(model: Model, strength: float) -> float:
    """Accuracy after one step of the loss gradient's sign (Goodfellow et al. 2014)."""
    x = model.x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        functional.cross_entropy(model.module(x), model.y), x
    )
    moved = (x + strength * slope.sign()).detach()
    with torch.no_grad():
        return float((model.module(moved).argmax(dim=1) == model.y).double().mean())


def _surely_other(
    model: Model, moved: torch.Tensor, labels: torch.Tensor, how: VoteSampling
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which inputs the smoothed model now surely calls something else."""
    votes = sample_votes(model.module, moved, how).votes
    rows, mine = np.arange(len(votes)), labels.numpy()
    held = votes[rows, mine]
    rivals = votes.copy()
    rivals[rows, mine] = 0
    best = rivals.max(axis=1)
    return np.asarray(best - held > DEVIATIONS * np.sqrt(best + held))


def table(results: Sequence[Result]) -> Table:
    """A row for each σ and method, and the sums of all."""
    rows = []
    for (sigma, method), (result, *_) in grouped(results, "sigma", "method").items():
        said = result.values
        rows.append(
            [
                f"{sigma:g}",
                method,
                f"{100 * said['accuracy']:.1f}",
                *(f"{100 * share:.1f}" for share in said["fgsm"]),
                f"{said['certified']}",
                *(f"{count}" for count in said["turned"]),
            ]
        )
    if results:
        total = sum(result.values["certified"] for result in results)
        turned = np.sum([result.values["turned"] for result in results], axis=0)
        empty = ["" for _ in range(len(STRENGTHS) + 1)]
        rows.append(["", "all", *empty, f"{total}", *(f"{count}" for count in turned)])
        missed = (1 - CONFIDENCE) * total
        rest = ["–" for _ in MULTIPLES[1:]]
        rows.append(["", "wrong, at most expected", *empty, "", f"{missed:.1f}", *rest])
    strengths = (f"FGSM {strength:g}, %" for strength in STRENGTHS)
    multiples = (f"turned in {multiple:g} r" for multiple in MULTIPLES)
    return Table(["σ", "method", "clean, %", *strengths, "certified", *multiples], rows)


def plot(results: Sequence[Result], figure: Any) -> None:
    """Accuracy by FGSM's strength; share of certified points that PGD turns by multiple."""
    left, right = figure.subplots(1, 2)
    largest = max(result.settings["sigma"] for result in results)
    for (sigma, method), (result, *_) in grouped(results, "sigma", "method").items():
        said = result.values
        style = "--" if method in BASELINES else "-"
        if sigma == largest:
            left.plot(
                STRENGTHS,
                [100 * share for share in said["fgsm"]],
                style,
                marker=".",
                color=COLOURS[method],
                label=method,
            )
            shares = [
                100 * count / max(1, said["certified"]) for count in said["turned"]
            ]
            right.plot(
                MULTIPLES,
                shares,
                style,
                marker=".",
                color=COLOURS[method],
                label=method,
            )
    left.set_xscale("log")
    left.set_xlabel("ℓ∞ strength of FGSM")
    left.set_ylabel("accuracy, %")
    right.set_xlabel("ℓ2 distance of PGD, in certified radii")
    right.set_ylabel("certified points turned, %")
    for axes in (left, right):
        axes.grid(alpha=0.25)
    left.legend(frameon=False, fontsize=8)


EXPERIMENTS.register("dpcert-fig16")(
    Experiment(
        paper="DP-CERT",
        figure="Fig. 16, and what certificates withstand",
        claim=(
            "DP-Stability withstands FGSM best, the other instances of DP-CERT alike"
            " and better than training without them; no attack succeeds inside a"
            " certified radius but with the certificate's own error."
        ),
        does=(
            "FGSM on the model alone. PGD in ℓ2 on the smoothed model (20 steps of 32"
            " copies), within 0.999 of each input's certified radius and beyond it; it"
            " counts where another label leads fresh votes by four standard deviations."
        ),
        settings=_SETTINGS,
        cells=lower_cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
