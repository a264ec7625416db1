"""What Xie et al.'s figures of attack inefficacy share: measured losses, and bounds on them.

C(θ) is a model's mean loss at what an attack aims at, at most C̄; J its expectation
over training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Replacements
from precad.certify.inefficacy import (
    MeanInterval,
    attack_bounds,
    expected_loss,
    fewest_attackers,
)
from precad.certify.intervals import ScoreBound
from research.papers.xie_curves import CONFIDENCE, grouped, share
from research.papers.xie_levels import BothScales, Level
from research.study import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

MODELS = 100
"""Of each cell, as in the paper."""
BOUND = {Scale.SMALL: 4.0, Scale.PAPER: 0.5}
"""C̄. Losses on the digits are about 2, so that the paper's bound would cut all of
them."""
BACKDOOR, FLIPPING = "scaled-pixel-backdoor", "scaled-one-label"
DISTRIBUTED = "scaled-distributed-backdoor"
SHORT = {
    "scaled-pixel-backdoor": "BKD",
    "pixel-backdoor": "BKD",
    "scaled-one-label": "LF",
    "one-label": "LF",
    "scaled-distributed-backdoor": "DBA",
}
"""The paper's names."""
_REPLACED = (Direction.ADDITIONS,)


def measure(level: Level, settings: Settings, around: Surroundings) -> dict[str, Any]:
    """Each model's C(θ), and the models' mean accuracy."""
    ensemble = level.train(settings, around)
    return {
        "losses": np.round(ensemble.losses(settings["bound"]), 6).tolist(),
        "accuracy": round(float(ensemble.right().mean()), 4),
    }


def inefficacy(result: Result) -> MeanInterval:
    """J, with bounds that hold together at 99 %."""
    bound = result.settings["bound"]
    return expected_loss(
        result.values["losses"],
        bound=bound,
        confidence=CONFIDENCE,
        how=ScoreBound.BERNSTEIN,
    )


def published_bound(
    clean: float, epsilon: float, delta: float, bound: float, k: int
) -> float:
    """Theorem 3's lower bound as the paper uses it: additions, J(D) as if it were known."""
    kept = math.exp(-k * epsilon)
    return max(kept * clean - (1 - kept) / math.expm1(epsilon) * delta * bound, 0.0)


def sound_bound(clean: Result, level: Level, k: int) -> float:
    """Least J(D') after k were replaced: exact, from a lower bound of J(D) at 99 %."""
    guarantee = Replacements(ExactGroups(level.mechanism(clean.settings)))
    bound = clean.settings["bound"]
    found = attack_bounds(inefficacy(clean).lower, bound, guarantee, k, _REPLACED)
    return float(found.lower)


def published_fewest(
    clean: float, epsilon: float, delta: float, bound: float, tau: float
) -> float:
    """Corollary 1 as printed: attackers who may bring J down to J(D)/τ."""
    scaled = math.expm1(epsilon) * clean
    return (
        math.log((scaled * tau + bound * delta * tau) / (scaled + bound * delta * tau))
        / epsilon
    )


def sound_fewest(clean: Result, level: Level, tau: float) -> int | None:
    """The same, of those who replace: so many at least, whatever J(D) above its bound is.

    The share of J that an attack must leave grows with J, so that its lower bound is
    the worst.
    """
    guarantee = Replacements(ExactGroups(level.mechanism(clean.settings)))
    lower, bound = inefficacy(clean).lower, clean.settings["bound"]
    return fewest_attackers(
        value=lower,
        bound=bound,
        ratio=tau,
        guarantee=guarantee,
        directions=_REPLACED,
        limit=200,
    )


def both_bounds(
    clean: Result, level: Level, epsilon: float, k: int
) -> tuple[float, float]:
    """Least J(D') after k attackers: as published at the printed ε, and soundly."""
    mean, bound = inefficacy(clean).mean, clean.settings["bound"]
    printed = published_bound(mean, epsilon, level.delta, bound, k)
    return printed, sound_bound(clean, level, k)


def both_fewest(
    clean: Result, level: Level, epsilon: float, tau: float
) -> tuple[float, int | None]:
    """Attackers who may bring J down to J(D)/τ: as published at the printed ε, and soundly."""
    mean, bound = inefficacy(clean).mean, clean.settings["bound"]
    printed = published_fewest(mean, epsilon, level.delta, bound, tau)
    return printed, sound_fewest(clean, level, tau)


def _name(settings: Settings) -> str:
    gamma = settings.get("attack_options", {}).get("gamma")
    parts = [str(SHORT.get(settings["attack"], settings["attack"]))]
    if "bad_share" in settings:
        parts.append(f"α = {100 * settings['bad_share']:g} %")
    if gamma is not None:
        parts.append(f"γ = {gamma:g}")
    return ", ".join(parts)


def _kind(settings: Settings) -> str:
    """Attacks with the same goal have the same J(D)."""
    return "LF" if "label" in settings["attack"] else "BKD"


def _contradicted(measured: MeanInterval, sound: float) -> bool:
    return measured.upper < sound


@dataclass(frozen=True, slots=True)
class ByAttackers:
    """Inefficacy by k, a line for each attack, above its bounds (Fig.

    4, 5 (b, c), 6 (b, c)).

    Attributes:
        level: users or records.
        attacks: settings of each line.
        bad: k at each scale.
        published: ε and the clean models' accuracy as printed, for the one noise level.
    """

    level: Level
    attacks: Sequence[Settings]
    bad: Mapping[Scale, Sequence[int]]
    published: tuple[float, float]

    def cells(self, scale: Scale) -> list[Settings]:
        """Line by line."""
        return [
            {**attack, "bad": k, "seed": 0}
            for attack in self.attacks
            for k in self.bad[scale]
        ]

    def measure(self, settings: Settings, around: Surroundings) -> dict[str, Any]:
        """See ``measure``."""
        return measure(self.level, settings, around)

    def _lines(self, results: Sequence[Result]) -> dict[str, dict[int, Result]]:
        found: dict[str, dict[int, Result]] = {}
        for result in results:
            found.setdefault(_name(result.settings), {})[result.settings["bad"]] = (
                result
            )
        return found

    def _clean(self, results: Sequence[Result]) -> dict[str, Result]:
        """The first clean cell for each goal."""
        found: dict[str, Result] = {}
        for result in results:
            if result.settings["bad"] == 0:
                found.setdefault(_kind(result.settings), result)
        return found

    def _bounds(
        self, clean: Result, places: Sequence[int]
    ) -> tuple[list[float], list[float]]:
        epsilon, _ = self.published
        both = [both_bounds(clean, self.level, epsilon, k) for k in places]
        return [printed for printed, _ in both], [sound for _, sound in both]

    def _accuracy(self, clean: Mapping[str, Result], places: int) -> list[str]:
        """Of clean models, which are the same for each goal."""
        measured = next(iter(clean.values())).values["accuracy"]
        named = f"accuracy, clean; published {share(self.published[1])}"
        return [named, share(measured), *[""] * places]

    def table(self, results: Sequence[Result]) -> Table:
        """Rows of accuracy, of the bounds for each goal, and of J(D') for each attack."""
        places = sorted({result.settings["bad"] for result in results})
        clean = self._clean(results)
        rows, least = [self._accuracy(clean, len(places))] if clean else [], {}
        for kind, result in clean.items():
            printed, sound = self._bounds(result, places)
            least[kind] = dict(zip(places, sound, strict=True))
            rows.append(
                [f"{kind}, bound as published", *(f"{one:.3f}" for one in printed), ""]
            )
            rows.append([f"{kind}, sound bound", *(f"{one:.3f}" for one in sound), ""])
        for name, line in self._lines(results).items():
            broken = [
                k
                for k, result in line.items()
                if k in least.get(_kind(result.settings), {})
                and _contradicted(inefficacy(result), least[_kind(result.settings)][k])
            ]
            shown = [
                f"{inefficacy(line[k]).mean:.3f}" if k in line else "–" for k in places
            ]
            rows.append([name, *shown, ", ".join(map(str, broken)) or "none"])
        return Table(["J", *(f"k = {k}" for k in places), "contradicted at k"], rows)

    def plot(self, results: Sequence[Result], figure: Any) -> None:
        """A panel for each goal: measured lines, and the two bounds where k = 0 was measured."""
        clean = self._clean(results)
        # Bounds fall exponentially: a straight line from one measured k to the next
        # isn't theirs.
        places = range(
            max((result.settings["bad"] for result in results), default=0) + 1
        )
        kinds = list(dict.fromkeys(_kind(result.settings) for result in results))
        panels = figure.subplots(1, max(1, len(kinds)), sharey=True, squeeze=False)[0]
        for axes, kind in zip(panels, kinds, strict=False):
            for name, line in self._lines(results).items():
                if _kind(next(iter(line.values())).settings) == kind:
                    mean = [inefficacy(line[k]).mean for k in line]
                    axes.plot(list(line), mean, marker=".", label=name)
            if kind in clean:
                printed, sound = self._bounds(clean[kind], places)
                axes.plot(
                    places, printed, "--", color="black", label="bound as published"
                )
                axes.plot(places, sound, ":", color="black", label="sound bound, 99 %")
            axes.set_title(f"{kind}: lower is a stronger attack")
            axes.set_xlabel(f"k, {self.level.bad}")
            axes.grid(alpha=0.3)
            axes.legend(fontsize="x-small")
        panels[0].set_ylabel("J, attack inefficacy")


@dataclass(frozen=True, slots=True)
class ByEpsilon:
    """Inefficacy by ε, a line for each k, and the fewest who reach J(D)/τ (Fig.

    5 to 7, 10).

    Attributes:
        level: users or records.
        attacks: settings of each goal.
        bad: k; 0 is what the bounds start from.
        published: ε and the clean models' accuracy by σ, as printed.
        small: σ at the small scale.
        ratios: τ.
    """

    level: Level
    attacks: Sequence[Settings]
    bad: Sequence[int]
    published: Mapping[float, tuple[float, float]]
    small: Sequence[float]
    ratios: Sequence[float] = ()

    def cells(self, scale: Scale) -> list[Settings]:
        """Goal by goal, σ by σ."""
        return [
            {**attack, "noise_multiplier": sigma, "bad": k, "seed": 0}
            for attack in self.attacks
            for sigma in (self.published if scale is Scale.PAPER else self.small)
            for k in self.bad
        ]

    def measure(self, settings: Settings, around: Surroundings) -> dict[str, Any]:
        """See ``measure``."""
        return measure(self.level, settings, around)

    def _lines(
        self, results: Sequence[Result]
    ) -> dict[str, dict[float, dict[int, Result]]]:
        """By attack, σ and k; a σ without its clean cell is left out."""
        found: dict[str, dict[float, dict[int, Result]]] = {}
        for name, some in _by_name(results).items():
            by_noise = {
                sigma: {each.settings["bad"]: each for each in group}
                for sigma, group in grouped(some, "noise_multiplier").items()
            }
            found[name] = {
                sigma: cells for sigma, cells in by_noise.items() if 0 in cells
            }
        return found

    def _row(self, sigma: float, cells: Mapping[int, Result]) -> list[str]:
        clean = cells[0]
        epsilon, accuracy = self.published[sigma]
        right = f"{share(accuracy)} / {share(clean.values['accuracy'])}"
        row = [f"{sigma:g}", f"{epsilon:.4f}", right, f"{inefficacy(clean).mean:.3f}"]
        for k in self.bad:
            if k == 0:
                continue
            printed, sound = both_bounds(clean, self.level, epsilon, k)
            measured = inefficacy(cells[k]) if k in cells else None
            shown = "–" if measured is None else f"{measured.mean:.3f}"
            star = (
                " CONTRADICTED" if measured and _contradicted(measured, sound) else ""
            )
            row.append(f"{shown} ≥ {printed:.3f} / {sound:.3f}{star}")
        for tau in self.ratios:
            printed, fewest = both_fewest(clean, self.level, epsilon, tau)
            row.append(f"{printed:.1f} / {'over 200' if fewest is None else fewest}")
        return row

    def table(self, results: Sequence[Result]) -> Table:
        """A row for each attack and σ."""
        rows = [
            [name, *self._row(sigma, cells)]
            for name, line in self._lines(results).items()
            for sigma, cells in line.items()
        ]
        headings = [
            "attack",
            "σ",
            "ε published",
            "accuracy, clean: published / measured",
            "J(D)",
        ]
        reached = [
            f"J(D'), k = {k}: measured ≥ as published / sound" for k in self.bad if k
        ]
        fewest = [
            f"least k for τ = {tau:g}: as published / sound" for tau in self.ratios
        ]
        return Table([*headings, *reached, *fewest], rows)

    def plot(self, results: Sequence[Result], figure: Any) -> None:
        """A panel for each attack with inefficacy by ε, and one with the fewest attackers."""
        lines = self._lines(results)
        draws = [self._draw_losses if any(self.bad) else None]
        draws.append(self._draw_fewest if self.ratios else None)
        kinds: list[Callable[..., None]] = [each for each in draws if each is not None]
        panels = figure.subplots(len(kinds), max(1, len(lines)), squeeze=False)
        for row, draw in zip(panels, kinds, strict=True):
            for axes, (name, line) in zip(row, lines.items(), strict=False):
                draw(axes, line)
                axes.set_title(name, fontsize="medium")
                axes.set_xlabel("ε as published")
                axes.grid(alpha=0.3)
            # Long enough for a dash to be seen beside its mark.
            beside = {
                "loc": "center left",
                "bbox_to_anchor": (1, 0.5),
                "handlelength": 4,
            }
            if row[-1].get_legend_handles_labels()[0]:
                row[-1].legend(fontsize="x-small", **beside)

    def _draw_losses(
        self, axes: Any, line: Mapping[float, Mapping[int, Result]]
    ) -> None:
        """Bounds need no attack, so that they are drawn where none was measured too."""
        places = [self.published[sigma][0] for sigma in line]
        for number, k in enumerate(self.bad):
            colour = f"C{number}"
            some = {
                self.published[sigma][0]: cells
                for sigma, cells in line.items()
                if k in cells
            }
            if some:
                mean = [inefficacy(cells[k]).mean for cells in some.values()]
                axes.plot(list(some), mean, marker=".", color=colour, label=f"k = {k}")
            if k:
                both = [
                    both_bounds(cells[0], self.level, epsilon, k)
                    for epsilon, cells in zip(places, line.values(), strict=True)
                ]
                printed, sound = [one for one, _ in both], [one for _, one in both]
                axes.plot(
                    places, printed, "--x", color=colour, label=f"k = {k}, as published"
                )
                axes.plot(
                    places, sound, ":+", color=colour, label=f"k = {k}, sound, 99 %"
                )
        axes.set_ylim(bottom=0)
        axes.set_ylabel("J")

    def _draw_fewest(
        self, axes: Any, line: Mapping[float, Mapping[int, Result]]
    ) -> None:
        places = [self.published[sigma][0] for sigma in line]
        for tau in self.ratios:
            both = [
                both_fewest(cells[0], self.level, epsilon, tau)
                for epsilon, cells in zip(places, line.values(), strict=True)
            ]
            printed = [least for least, _ in both]
            sound = [least or math.nan for _, least in both]
            (drawn,) = axes.plot(
                places, printed, "--x", label=f"τ = {tau:g}, published"
            )
            axes.plot(
                places,
                sound,
                ":+",
                color=drawn.get_color(),
                label=f"τ = {tau:g}, sound",
            )
        axes.set_ylim(bottom=0)
        axes.set_ylabel("least k")


def register_attacks(
    name: str, by: ByAttackers | ByEpsilon, at: BothScales, **said: str
) -> None:
    """Register an experiment of attacks by users under ``name``.

    Args:
        name: of the experiment.
        by: its cells, table and picture.
        at: settings of each scale, C̄ among them.
        said: the experiment's ``figure``, ``claim`` and ``does``.
    """
    EXPERIMENTS.register(name)(
        Experiment(
            paper="Xie et al.",
            settings={
                scale: {**settings, "models": MODELS} for scale, settings in at.items()
            },
            cells=by.cells,
            measure=by.measure,
            table=by.table,
            plot=by.plot,
            **said,
        )
    )


def with_bound(
    settings: BothScales, small: float, paper: float, **trained: Any
) -> BothScales:
    """Settings of both scales, C̄ of each and what both have."""
    bound = {Scale.SMALL: small, Scale.PAPER: paper}
    return {s: {**each, **trained, "bound": bound[s]} for s, each in settings.items()}


def _by_name(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(_name(result.settings), []).append(result)
    return found
