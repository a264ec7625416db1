"""One noise budget, three robustnesses: the picture of docs/robustness.md.

python -m research.robustness.budget --out FILE.json --picture FILE.png
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import spent
from precad.certify.group_guarantees import ExactGroups
from precad.certify.inefficacy import attack_bounds
from precad.certify.prediction import average_certified_radius
from precad.client.gradients.noisy_votes import VoteSampling
from research.datasets import load
from research.papers.dpcert_models import SETTINGS, training_of
from research.robustness.certify import certify, trained
from research.study import Scale

NOISES = (1.0, 1.5, 2.0, 3.0, 4.0)
CLEAN, AT_MOST = 0.1, 0.5
"""An expected error, and the one that attackers shall not reach."""
COPIES = 1000


def measured(
    noises: tuple[float, ...] = NOISES, seeds: tuple[int, ...] = (0, 1, 2)
) -> Any:
    """A row for each noise multiplier: ε, poisoned records withstood, accuracy, ACR."""
    data, rows = load("digits"), []
    cell = {**SETTINGS[Scale.SMALL], "method": "dp-gaussian", "sigma": 0.25}
    for noise in noises:
        accuracy, acr = [], []
        for seed in seeds:
            how = replace(training_of({**cell, "seed": seed}), given_noise=noise)
            model = trained(how, data, every=1)
            found = certify(
                model,
                VoteSampling(sigma=0.25, selection=100, copies=COPIES, draw=seed),
                data.classes,
            )
            accuracy.append(model.accuracy)
            acr.append(average_certified_radius(found.radii, found.right))
        event = poisson_gaussian(
            rate=how.rate, noise_multiplier=noise, count=how.rounds
        )
        groups, k = ExactGroups(event), 0
        while float(attack_bounds(CLEAN, 1.0, groups, k + 1).upper) < AT_MOST:
            k += 1
        rows.append(
            {
                "noise_multiplier": noise,
                "epsilon": spent(event, how.delta),
                "poisoned_records": k,
                "accuracy": float(np.mean(accuracy)),
                "acr": float(np.mean(acr)),
            }
        )
        click.echo(json.dumps(rows[-1]))
    return rows


def picture(rows: list[dict[str, float]], path: Path) -> None:
    """Three panels over the noise multiplier."""
    from matplotlib.figure import Figure  # noqa: PLC0415 -- a second

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    noise = [row["noise_multiplier"] for row in rows]
    panels = (
        (left, "epsilon", "ε of a record (lower is better)", "record privacy"),
        (middle, "poisoned_records", "bad records withstood", "poisoned training"),
    )
    for axes, name, label, title in panels:
        axes.plot(noise, [row[name] for row in rows], color="#1b5e8c", marker=".")
        axes.set_ylabel(label, fontsize=9)
        axes.set_title(title, loc="left", fontsize=11)
    right.plot(noise, [row["accuracy"] for row in rows], color="#c8553d", marker=".",
               label="accuracy")  # fmt: skip
    right.plot(noise, [row["acr"] for row in rows], color="#3a7d44", marker=".",
               label="average certified radius")  # fmt: skip
    right.set_title("what it costs, and changed inputs", loc="left", fontsize=11)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, middle, right):
        axes.set_xlabel("noise multiplier of the sum")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.25)
    figure.savefig(path, dpi=110)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path, required=True)
    given = parser.parse_args()
    if not given.out.exists():
        given.out.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    picture(json.loads(given.out.read_text(encoding="utf-8")), given.picture)


if __name__ == "__main__":
    main()
