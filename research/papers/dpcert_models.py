"""What DP-CERT's experiments share: settings, methods, one trained model, its certificates."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as tensors_of

from precad.certify.prediction import average_certified_radius, certified_accuracy
from precad.client.gradients.noisy_votes import VoteSampling
from precad.common.errors import Misconfiguration
from precad.common.task_schema import ObjectiveSection
from research.datasets import DataSet, load
from research.robustness.certify import RADII, Certified, Model, certify, trained
from research.robustness.federated import federated
from research.robustness.train import Training, Weights
from research.study import Result, Scale, Settings, Surroundings

METHODS = (
    "regular",
    "dp-sgd",
    "psac",
    "dp-gaussian",
    "dp-smoothadv",
    "dp-stability",
    "dp-macer",
)
BASELINES, CERT = METHODS[:3], METHODS[3:]
SIGMAS = (0.25, 0.5, 1.0)
LOWER_SIGMAS = SIGMAS[:2]
COLOURS = dict(
    zip(
        METHODS,
        ("#444444", "#1b5e8c", "#7d5ba6", "#c8553d", "#3a7d44", "#8a6d3b", "#0f8b8d"),
        strict=True,
    )
)
WEIGHTS = "pretrained.safetensors"
"""In the folder of the data: public weights that a fine-tuning starts from."""

SETTINGS: Mapping[Scale, Settings] = {
    Scale.SMALL: {
        "data": "digits",
        "model": "mlp",
        "trained": "centrally",
        "clients": 10,
        "epsilon": 3.0,
        "delta": 1e-5,
        "rate": 0.2,
        "rounds": 60,
        "learning_rate": 3.0,
        "momentum": 0.0,
        "clip": 1.0,
        "augmentations": 2,
        "selection": 100,
        "copies": 10_000,
        "every": 1,
    },
    Scale.PAPER: {
        "data": "mnist",
        "model": "cnn",
        "trained": "centrally",
        "clients": 10,
        "epsilon": 3.0,
        "delta": 1e-5,
        "rate": 1 / 60,
        "rounds": 600,
        "learning_rate": 1.0,
        "momentum": 0.9,
        "clip": 0.1,
        "augmentations": 2,
        "selection": 100,
        "copies": 10_000,
        "every": 100,
    },
}
"""DP-CERT Sec. 4, App. C.3; smaller for scikit-learn's digits. ``every``: each
how-many-th held-out record is certified; 1 at the paper's scale takes a hundred times
as long to certify."""
_REGULAR: Mapping[Scale, Settings] = {
    Scale.SMALL: {"epsilon": None, "learning_rate": 0.5, "rounds": 300},
    Scale.PAPER: {
        "epsilon": None,
        "learning_rate": 0.1,
        "rate": 1 / 240,
        "rounds": 1200,
    },
}


def method_cells(
    scale: Scale,
    methods: Sequence[str],
    sigmas: Sequence[float],
    seeds: int,
    **own: Any,
) -> Iterator[Settings]:
    """A cell for each; seed by seed, so that all methods' first numbers come early."""
    for seed in range(seeds):
        for sigma in sigmas:
            for method in methods:
                free = _REGULAR[scale] if method == "regular" else {}
                yield {"method": method, "sigma": sigma, "seed": seed, **free, **own}


def lower_cells(scale: Scale) -> list[Settings]:
    """Every method at the two lower noise levels; one seed, whose points are the sample."""
    return list(method_cells(scale, METHODS, LOWER_SIGMAS, 1))


def objective_of(settings: Settings) -> ObjectiveSection:
    """What a method minimises, trained for smoothing at its σ."""
    method, sigma = settings["method"], settings["sigma"]
    clipping = "psac" if settings.get("psac") or method == "psac" else "flat"
    if method in BASELINES:
        return ObjectiveSection.model_validate({"clipping": clipping})
    values = {
        "name": method,
        "noise": sigma,
        "copies": settings["augmentations"],
        "original": settings.get("original", True),
        "clipping": clipping,
    }
    if method == "dp-smoothadv":
        values["attack_radius"] = sigma
    return ObjectiveSection.model_validate(values)


def training_of(settings: Settings) -> Training:
    """The cell's training."""
    same = (
        "data",
        "model",
        "epsilon",
        "delta",
        "rate",
        "rounds",
        "learning_rate",
        "momentum",
    )
    return Training(
        **{name: settings[name] for name in same},
        clip=settings["clip"],
        seed=settings["seed"],
        objective=objective_of(settings),
    )


def model_of(
    settings: Settings, around: Surroundings
) -> tuple[Model, DataSet, float | None]:
    """The cell's trained model, its data, and ε of a record; None without privacy."""
    data = load(settings["data"], around.data)
    how = training_of(settings)
    every, keep = settings["every"], around.keep
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)

    def said(number: int, _: float) -> None:
        around.progress(number, how.rounds)

    if settings["trained"] == "federated":
        model, epsilon = federated(how, data, every, settings["clients"], keep, said)
        return model, data, epsilon
    weights: Weights = {}
    if settings.get("fine_tuned"):
        digest, weights = weights_of(around.data)
        how = replace(how, start=digest)
    return trained(how, data, every, keep, said, weights), data, how.epsilon


def weights_of(folder: Path | None) -> tuple[str, Weights]:
    """Their digest, and public weights by the parameters' names.

    Raises:
        Misconfiguration: the folder has none.
    """
    file = None if folder is None else folder / WEIGHTS
    if file is None or not file.is_file():
        raise Misconfiguration(
            "--data",
            str(folder),
            "this fine-tunes a model: put public weights of its shapes there, as"
            f" {WEIGHTS}",
        )
    content = file.read_bytes()
    return hashlib.sha256(content).hexdigest()[:12], tensors_of(content)


def certified(
    model: Model, data: DataSet, settings: Settings, around: Surroundings
) -> Certified:
    """Certificates of the model's points at the cell's σ."""
    how = VoteSampling(
        sigma=settings["sigma"],
        selection=settings["selection"],
        copies=settings["copies"],
        draw=settings["seed"],
    )
    return certify(model, how, data.classes, around.keep)


def shares(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """A row of Table 2, and certified accuracy at ``RADII`` (Fig. 2, 4, 7, 8, 9)."""
    model, data, epsilon = model_of(settings, around)
    found = certified(model, data, settings, around)
    curve = certified_accuracy(found.radii, found.right, RADII)
    return {
        "accuracy": round(model.accuracy, 5),
        "acr": round(average_certified_radius(found.radii, found.right), 5),
        "at_quarter": round(
            float(certified_accuracy(found.radii, found.right, [0.25])[0]), 5
        ),
        "abstained": int((~found.found.certified).sum()),
        "points": len(model.y),
        "epsilon": None if epsilon is None else round(epsilon, 4),
        "curve": [round(share, 5) for share in curve.tolist()],
    }


def grouped(
    results: Sequence[Result], *names: str
) -> dict[tuple[Any, ...], list[Result]]:
    """Results that differ in nothing named but the seed, in the order of the cells."""
    found: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        key = tuple(result.settings.get(name) for name in names)
        found.setdefault(key, []).append(result)
    return found


def spread(group: Sequence[Result], value: str, digits: int, times: float = 1.0) -> str:
    """Mean over seeds, and for several their standard deviation."""
    values = [times * result.values[value] for result in group]
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def curve_on(axes: Any, group: Sequence[Result], **how: Any) -> None:
    """Certified accuracy by radius, up to where it ends; mean over seeds."""
    mean = 100 * np.mean([result.values["curve"] for result in group], axis=0)
    last = int(np.flatnonzero(mean)[-1]) + 2 if mean.any() else 2
    axes.plot(RADII[:last], mean[:last], linewidth=1.6, **how)


def curve_axes(figure: Any, sigmas: Sequence[float]) -> dict[float, Any]:
    """A panel a σ, with its labels."""
    found = {}
    panels = np.ravel(figure.subplots(1, max(1, len(sigmas)), sharey=True))
    for axes, sigma in zip(panels, sigmas, strict=False):
        axes.set_title(f"σ = {sigma:g}", loc="left", fontsize=11)
        axes.set_xlabel("ℓ2 radius")
        axes.set_xmargin(0)
        axes.set_ylim(0, 102)
        axes.grid(alpha=0.25)
        found[sigma] = axes
    panels[0].set_ylabel("certified accuracy, %")
    return found


def sigmas_of(results: Sequence[Result]) -> list[float]:
    """Those that there are, ascending."""
    return sorted({result.settings["sigma"] for result in results})
