"""Folders of finished runs: what is read, and what isn't taken for one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.certify.finished_runs import Ensemble, FinishedRun
from precad.common.errors import Misconfiguration

INPUTS = {
    "task_digest": "ab",
    "record_rate": 0.2,
    "client_rate": 0.5,
    "noise_multiplier": 2.0,
    "record_clip": 1.0,
    "effective_record_clip": 1.1,
    "client_clip": 2.0,
    "rounds": 40,
    "delta": 1e-5,
    "clients": 100,
    "malicious_submission_soundness_bits": 40,
}


def folder_of(path: Path, summary: Any, **arrays: Any) -> Path:
    path.mkdir()
    (path / "summary.json").write_text(
        summary if isinstance(summary, str) else json.dumps(summary), encoding="utf-8"
    )
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", values)
    return path


def test_a_run_has_its_inputs_and_what_it_measured_or_neither(tmp_path: Path) -> None:
    summary = {"certificate_inputs": INPUTS, "accuracy": 0.9}
    bare = FinishedRun.read(folder_of(tmp_path / "bare", summary))
    assert bare.inputs.model_dump(exclude_unset=True) == INPUTS
    assert bare.predictions is None
    assert bare.losses is None
    labels, losses = np.array([2, 0, 1], np.uint8), np.array([0.5, 0.25, 1.0], np.float32)
    folder = folder_of(tmp_path / "whole", summary, predictions=labels, losses=losses)
    whole = FinishedRun.read(folder)
    assert whole.predictions is not None
    assert whole.losses is not None
    assert (whole.predictions.tolist(), str(whole.predictions.dtype)) == ([2, 0, 1], "int64")
    assert (whole.losses.tolist(), str(whole.losses.dtype)) == ([0.5, 0.25, 1.0], "float64")


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([INPUTS], "has no certificate_inputs"),
        ({"accuracy": 0.9}, "has no certificate_inputs"),
        ({"certificate_inputs": [1]}, "has no certificate_inputs"),
        ({"certificate_inputs": {**INPUTS, "client_clip": None}}, "client_clip"),
        ({"certificate_inputs": {"record_rate": 0.2}}, "lacks it; use a newer run"),
        ({"certificate_inputs": {**INPUTS, "attempts": 39}}, "every round had at least one"),
        ({"certificate_inputs": {**INPUTS, "effective_record_clip": 0.9}}, "includes R"),
        ({"certificate_inputs": {**INPUTS, "validation": "proof"}}, "N, where validation"),
        ({"certificate_inputs": {**INPUTS, "proof_points": 8}}, "N, where validation"),
    ],
)
def test_what_is_no_finished_run_is_refused(tmp_path: Path, summary: Any, said: str) -> None:
    with pytest.raises(Misconfiguration, match=said):
        FinishedRun.read(folder_of(tmp_path / "run", summary))


def test_a_folder_without_a_summary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfiguration, match=r"no summary\.json"):
        FinishedRun.read(tmp_path)


@pytest.mark.parametrize("labels", [np.array([0.0, 1.0]), np.array([True]), np.array(["a"])])
def test_labels_that_are_no_whole_numbers_are_refused(tmp_path: Path, labels: Any) -> None:
    folder = folder_of(tmp_path / "run", {"certificate_inputs": INPUTS}, predictions=labels)
    with pytest.raises(Misconfiguration):
        FinishedRun.read(folder)


@pytest.mark.parametrize("losses", [np.zeros(0), np.zeros((2, 2))])
def test_losses_are_one_a_test_point(tmp_path: Path, losses: Any) -> None:
    folder = folder_of(tmp_path / "run", {"certificate_inputs": INPUTS}, losses=losses)
    with pytest.raises(Misconfiguration, match="one value a test point"):
        FinishedRun.read(folder)


def test_runs_of_one_task_stand_together_and_the_most_redrawn_coins_count(tmp_path: Path) -> None:
    def run(name: str, **other: Any) -> FinishedRun:
        summary = {"certificate_inputs": INPUTS | other}
        return FinishedRun.read(folder_of(tmp_path / name, summary))

    first, second = run("first", redrawn_coins=1), run("second", redrawn_coins=3)
    assert Ensemble((first, second)).inputs.redrawn_coins == 3
    with pytest.raises(Misconfiguration, match="a run votes once"):
        Ensemble((first, first))
    with pytest.raises(Misconfiguration, match=r"differs from .* in rounds"):
        Ensemble((first, run("third", rounds=41)))
