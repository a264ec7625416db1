"""One report of a run: a record's ε, what bad records can do, and what changed inputs can do."""

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.certify.certificate_plots import plot_smoothing
from precad.certify.exact_groups import ExactGroups
from precad.certify.finished_runs import CertificateInputs, Unit
from precad.certify.inefficacy import attack_bounds
from precad.certify.intervals import ConfidenceBudget
from precad.certify.prediction import certified_accuracy
from precad.certify.smoothing import average_certified_radius, certify_smoothing
from precad.cli.demo_scenario import Scenario
from precad.client.gradients.noisy_votes import DRAWS, Sampling, sample_votes
from precad.client.gradients.torch_models import build
from precad.client.trained_model import load_vector

POISONED = (1, 2, 5, 10)
"""Numbers of bad records that the report bounds."""
RADII = (0.0, 0.125, 0.25, 0.5, 0.75)
CONFIDENCE = 0.999
COPIES = 10_000


def robustness(
    scenario: Scenario, theta: NDArray[np.float64], result: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """The report as one object; robustness.txt and certificate.png are written beside the model.

    Args:
        scenario: what ran, with an objective.
        theta: the last model, ``[d] float64``.
        result: the run's summary so far.
        folder: receives both files.
    """
    section = scenario.task.objective
    assert section is not None
    found: dict[str, Any] = {
        "objective": section.name,
        "epsilon_record": result["epsilon_exact_server"],
        "delta": result["delta"],
        "poisoning": _poisoning(result),
        "smoothing": _smoothing(scenario, theta, folder),
    }
    found["words"] = _words(found)
    title = f"What {scenario.dataset.name}, {scenario.model} promises"
    (folder / "robustness.txt").write_text(f"{title}\n\n{found['words']}\n", encoding="utf-8")
    return found


def _poisoning(result: dict[str, Any]) -> dict[str, Any]:
    """Bounds on the expected share of wrong answers by the number of bad records, for 1 − accuracy.

    One run has no expectation, so this run's own value is stated as what it is: an example.
    """
    inputs = CertificateInputs(**result["certificate_inputs"])
    guarantee = ExactGroups(inputs.mechanism(Unit.RECORD))
    wrong = 1.0 - result["accuracy"]
    rows = []
    for k in POISONED:
        bounds = attack_bounds(wrong, 1.0, guarantee, k)
        rows.append({"records": k, "lower": float(bounds.lower), "upper": float(bounds.upper)})
    return {"if_expected_error_is": wrong, "bounds": rows}


def _smoothing(scenario: Scenario, theta: NDArray[np.float64], folder: Path) -> dict[str, Any]:
    """CERTIFY of the held-out records at the objective's σ."""
    section, data = scenario.task.objective, scenario.dataset
    assert section is not None
    module = build(scenario.task.model)
    load_vector(module, theta)
    how = Sampling(section.noise, 100, COPIES, secrets.randbelow(DRAWS))
    votes = sample_votes(module, torch.from_numpy(data.test_x), how)
    budget = ConfidenceBudget(CONFIDENCE, data.classes)
    certificates = certify_smoothing(votes.votes, section.noise, budget, votes.selection)
    right = certificates.certified & (certificates.labels == data.test_y)
    path = folder / "certificate.png"
    plot_smoothing(path, certificates, right, known=True, noise=section.noise)
    shares = certified_accuracy(certificates.radius, right, RADII).tolist()
    return {
        "sigma": section.noise,
        "copies": COPIES,
        "confidence": CONFIDENCE,
        "points": len(data.test_y),
        "abstained": int((~certificates.certified).sum()),
        "average_certified_radius": average_certified_radius(certificates.radius, right),
        "certified_accuracy": dict(zip(map(str, RADII), shares, strict=True)),
    }


def _words(found: dict[str, Any]) -> str:
    """The report in plain words, Markdown."""
    poisoning, smoothing = found["poisoning"], found["smoothing"]
    bounds = "; ".join(
        f"{row['records']} bad: {row['lower']:.1%} to {row['upper']:.1%}"
        for row in poisoning["bounds"]
    )
    shares = ", ".join(
        f"{share:.1%} at {radius}" for radius, share in smoothing["certified_accuracy"].items()
    )
    return (
        f"Trained with {found['objective']}.\n\n"
        f"- Privacy of a record: ε = {found['epsilon_record']:.2f} at δ = {found['delta']:g} "
        "against one curious server; the objective costs none of it.\n"
        f"- Bad records: where the expected error is {poisoning['if_expected_error_is']:.1%}, as "
        f"in this run, records that are added or deleted leave it within: {bounds}.\n"
        f"- Changed inputs: smoothed with σ = {smoothing['sigma']:g} "
        f"({smoothing['copies']:,} copies, confidence {smoothing['confidence']:g} for each input), "
        f"right and certified at an ℓ2 radius: {shares}; average certified radius "
        f"{smoothing['average_certified_radius']:.3f}; {smoothing['abstained']} of "
        f"{smoothing['points']} inputs abstain."
    )
