"""DP-CERT Fig.

5, 6, 10, 15, 17 to 19: what of a single input goes with its certified radius.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from research.papers.dpcert_models import (
    BASELINES,
    CERT,
    COLOURS,
    SETTINGS,
    certified,
    grouped,
    lower_cells,
    model_of,
)
from research.robustness.metrics import metrics, penultimate
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

NAMES = {
    "gradient": "input gradient norm",
    "hessian": "input Hessian's spectral norm",
    "lipschitz": "local Lipschitz constant",
}
SHOWN = 0.5
"""σ of the picture (Fig. 5, 6, 17 to 19); the table has both."""
LEAST_GROUP = 5
"""Points of a group whose mean is drawn."""
_TINY = 1e-12
_SETTINGS: Mapping[Scale, Settings] = {
    Scale.SMALL: {
        **SETTINGS[Scale.SMALL],
        "box": 0.1,
        "steps": 20,
        "thresholds": [0.2, 0.4, 0.6],
    },
    Scale.PAPER: {
        **SETTINGS[Scale.PAPER],
        "box": 0.1,
        "steps": 20,
        "thresholds": [0.5, 1.0, 1.5],
    },
}
Reals = NDArray[np.float64]


def measure(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Radius and metrics of every point, in the points' order."""
    model, data, _ = model_of(settings, around)
    found = certified(model, data, settings, around)
    module: Any = model.module
    each = metrics(
        module,
        penultimate(module),
        model.x,
        model.y,
        box=settings["box"],
        steps=settings["steps"],
        seed=settings["seed"],
    )
    return {
        "accuracy": round(model.accuracy, 5),
        "radius": _short(found.radii),
        **{name: _short(getattr(each, name)) for name in NAMES},
    }


def _short(values: Reals) -> list[float]:
    return [float(f"{value:.4g}") for value in values.tolist()]


def logs(result: Result, name: str) -> Reals:
    """Decimal logarithms of a metric, ``[points]``."""
    return np.log10(np.maximum(np.array(result.values[name], np.float64), _TINY))


def correlation(result: Result, name: str) -> float:
    """Pearson's, of a metric's logarithm and the radius; 0 is the radius of what isn't certified.

    nan where one of them is the same for all points.
    """
    radius, metric = np.array(result.values["radius"]), logs(result, name)
    if radius.std() == 0 or metric.std() == 0:
        return float("nan")
    return float(np.corrcoef(radius, metric)[0, 1])


def split(result: Result, name: str, threshold: float) -> tuple[float, float]:
    """Mean logarithm of a metric at points below a radius, and of the rest (Fig.

    17 to 19).
    """
    below = np.array(result.values["radius"]) < threshold
    metric = logs(result, name)
    return tuple(
        float(metric[some].mean()) if some.any() else np.nan for some in (below, ~below)
    )  # type: ignore[return-value]


def table(results: Sequence[Result]) -> Table:
    """A row for each σ and method; a metric's median, 95th percentile and correlation."""
    rows = []
    for (sigma, method), (result, *_) in grouped(results, "sigma", "method").items():
        radius = np.array(result.values["radius"])
        cells = []
        for name in NAMES:
            values = np.array(result.values[name])
            middle, high = np.percentile(values, [50, 95])
            cells.append(f"{middle:.2g}, {high:.2g}, {correlation(result, name):+.2f}")
        at = result.settings["thresholds"][1]
        below, above = split(result, "lipschitz", at)
        rows.append(
            [
                f"{sigma:g}",
                method,
                f"{radius.mean():.3f}",
                f"{100 * (radius == 0).mean():.0f} %",
                *cells,
                f"{_power(below)}, {_power(above)}",
            ]
        )
    at = results[0].settings["thresholds"][1] if results else 0.0
    return Table(
        [
            "σ",
            "method",
            "ACR",
            "not certified",
            *(f"{name}: median, 95 %, correlation" for name in NAMES.values()),
            f"Lipschitz, radius below {at:g} and from it",
        ],
        rows,
    )


def _power(logarithm: float) -> str:
    return "–" if np.isnan(logarithm) else f"{10**logarithm:.2g}"


def plot(results: Sequence[Result], figure: Any) -> None:
    """Distributions of methods; means by radius; below and above thresholds; the radii."""
    figure.set_size_inches(13, 17)
    axes = figure.subplots(5, 3)
    shown = {
        method: group[0]
        for (sigma, method), group in grouped(results, "sigma", "method").items()
        if sigma == SHOWN
    }
    for column, (name, title) in enumerate(NAMES.items()):
        _distributions(axes[0, column], shown, (*BASELINES, "dp-gaussian"), name)
        _distributions(axes[1, column], shown, CERT, name)
        for method, result in shown.items():
            _by_radius(axes[2, column], result, name, method)
            _by_threshold(axes[3, column], result, name, method)
        axes[0, column].set_title(f"{title} (Fig. 5 a)", loc="left", fontsize=11)
        axes[1, column].set_title(
            "the instances of DP-CERT (Fig. 5 b)", loc="left", fontsize=11
        )
        axes[2, column].set_title(
            "by certified radius (Fig. 6)", loc="left", fontsize=11
        )
        axes[3, column].set_title(
            "below a radius, and from it: dashed (17 to 19)", loc="left", fontsize=11
        )
        for row in (0, 1):
            axes[row, column].set_xlabel("log10")
            axes[row, column].set_ylabel("points")
        for row in (2, 3):
            axes[row, column].set_xlabel("ℓ2 radius")
            axes[row, column].set_ylabel("mean log10")
    _radii(axes[4], shown)
    for number, each in enumerate(axes.ravel()):
        each.grid(alpha=0.25)
        if each.get_legend_handles_labels()[0] and (number % 3 == 0 or each in axes[4]):
            each.legend(frameon=False, fontsize=7)


def _distributions(
    axes: Any, shown: Mapping[str, Result], some: Sequence[str], name: str
) -> None:
    values = {method: logs(shown[method], name) for method in some if method in shown}
    if not values:
        return
    every = np.clip(np.concatenate(list(values.values())), -8, None)
    bins = np.linspace(every.min(), every.max(), 40)
    for method, own in values.items():
        axes.hist(
            np.clip(own, -8, None),
            bins,
            histtype="step",
            color=COLOURS[method],
            label=method,
        )


def _by_radius(axes: Any, result: Result, name: str, method: str) -> None:
    radius, metric = np.array(result.values["radius"]), logs(result, name)
    edges = np.linspace(0, max(radius.max(), _TINY), 11)
    group = np.clip(np.digitize(radius, edges) - 1, 0, 9)
    kept = [n for n in range(10) if (group == n).sum() >= LEAST_GROUP]
    middles = [(edges[n] + edges[n + 1]) / 2 for n in kept]
    means = [metric[group == n].mean() for n in kept]
    axes.plot(middles, means, marker=".", color=COLOURS[method], label=method)


def _by_threshold(axes: Any, result: Result, name: str, method: str) -> None:
    at = result.settings["thresholds"]
    both = np.array([split(result, name, threshold) for threshold in at])
    axes.plot(at, both[:, 0], marker=".", color=COLOURS[method], label=method)
    axes.plot(at, both[:, 1], marker=".", linestyle="--", color=COLOURS[method])


def _radii(row: Sequence[Any], shown: Mapping[str, Result]) -> None:
    """Fig. 15: how many points have which radius."""
    for axes, some in zip(
        row, (BASELINES, ("dp-sgd", "dp-gaussian"), CERT), strict=True
    ):
        values = {m: np.array(shown[m].values["radius"]) for m in some if m in shown}
        if values:
            bins = np.linspace(0, max(own.max() for own in values.values()) + _TINY, 25)
            for method, own in values.items():
                axes.hist(
                    own, bins, histtype="step", color=COLOURS[method], label=method
                )
        axes.set_title("certified radii (Fig. 15)", loc="left", fontsize=11)
        axes.set_xlabel("ℓ2 radius; 0: not certified")
        axes.set_ylabel("points")


EXPERIMENTS.register("dpcert-fig5")(
    Experiment(
        paper="DP-CERT",
        figure="Figs. 5, 6, 10, 15, 17 to 19",
        claim=(
            "The certified radius falls with the logarithm of the input gradient's"
            " norm, the input Hessian's spectral norm and the local Lipschitz constant,"
            " the last most closely; DP-SGD has inputs with very large ones, and"
            " DP-CERT has fewer."
        ),
        does=(
            "All three of every certified input: the Hessian's by power iteration with"
            " its products with vectors, the Lipschitz constant of the last layer but"
            " one by projected gradient ascent in a box, from below."
        ),
        settings=_SETTINGS,
        cells=lower_cells,
        measure=measure,
        table=table,
        plot=plot,
    )
)
