"""Fits the forecast's constants to the table of real trainings, and prints them.

    python -m research.fit_forecast benchmarks/results/trainings.json

Errors of accuracy weigh by how far the three seeds lie apart; agreement is fitted beside them.
Settings that were drawn to be held out take no part.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from precad.accounting.forecast import FITTED, Architecture, Constants, Training, forecast
from precad.accounting.sizes import owners_sizes

_EXACT = 0.01
_PER_SPREAD = 0.3
_AGREEMENT_WEIGHT = 0.3
_WIDEST = 20.0


def training_of(row: dict[str, Any]) -> Training:
    """What the forecast sees of one row of the table."""
    same = (
        "record_rate",
        "client_rate",
        "rounds",
        "noise_multiplier",
        "record_clip",
        "effective_record_clip",
        "client_clip",
        "learning_rate",
        "dimension",
    )
    return Training(
        **{name: row[name] for name in same},
        records=owners_sizes(row["records"]),
        architecture=Architecture.DEEP if row["model"] == "mlp" else Architecture.LINEAR,
    )


def fitted(rows: list[dict[str, Any]]) -> Constants:
    """The constants that suit these rows best, from those that are in use."""
    names = list(asdict(FITTED))

    def constants(logarithms: NDArray[np.float64]) -> Constants:
        values = np.exp(np.clip(logarithms, -_WIDEST, _WIDEST))
        return Constants(**dict(zip(names, values.tolist(), strict=True)))

    def residuals(logarithms: NDArray[np.float64]) -> list[float]:
        tried, found = constants(logarithms), []
        for row in rows:
            made = forecast(training_of(row), tried)
            spread = max(row["accuracies"]) - min(row["accuracies"])
            weight = 1 / (_EXACT + _PER_SPREAD * spread)
            found.append(weight * (made.accuracy - row["accuracy"]))
            found.append(_AGREEMENT_WEIGHT * math.log(made.agreement / row["agreement"]))
        return found

    start = np.log(list(asdict(FITTED).values()))
    return constants(least_squares(residuals, start, loss="soft_l1").x)


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("table", type=Path)
    rows = json.loads(parser.parse_args().table.read_text())["settings"]
    for name, value in asdict(fitted([row for row in rows if not row["held_out"]])).items():
        print(f"{name}: float = {value:.4g}")  # noqa: T201


if __name__ == "__main__":
    main()
