"""Folders of finished runs: what is read, and what isn't taken for one."""

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.certified import RUN_INPUTS as INPUTS
from tests.rig.refusals import refused

from precad.accounting.adversaries import Adversary
from precad.certify.finished_runs import Ensemble, FinishedRun
from precad.common.errors import Misconfiguration

LABELS, LOSSES = np.array([2, 0, 1], np.uint8), np.array([0.5, 0.25, 1.0], np.float32)


def run(
    path: Path,
    summary: object = None,
    *,
    inputs: object = INPUTS,
    **arrays: NDArray[np.generic],
) -> FinishedRun:
    path.mkdir()
    text = summary if isinstance(summary, str) else json.dumps(summary)
    if summary is None:
        text = json.dumps({"certificate_inputs": inputs, "accuracy": 0.9})
    (path / "summary.json").write_text(text, encoding="utf-8")
    for name, values in arrays.items():
        np.save(path / f"{name}.npy", values)
    return FinishedRun.read(path)


def test_a_run_has_its_inputs_and_what_it_measured_or_neither(tmp_path: Path) -> None:
    bare = run(tmp_path / "bare")
    assert bare.inputs.model_dump(exclude_unset=True) == INPUTS
    assert (bare.predictions, bare.losses) == (None, None)
    whole = run(tmp_path / "whole", predictions=LABELS, losses=LOSSES)
    assert whole.predictions is not None
    assert whole.losses is not None
    assert whole.predictions.tolist() == [2, 0, 1]
    assert whole.losses.tolist() == [0.5, 0.25, 1.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"summary": "{"}, "isn't JSON"),
        ({"summary": "[" * 100_000}, "isn't JSON"),
        ({"summary": [INPUTS]}, "has another form"),
        ({"summary": {"accuracy": 0.9}}, "certificate_inputs.* lacks it"),
        ({"inputs": [1]}, "certificate_inputs.* has another form"),
        ({"inputs": {**INPUTS, "client_clip": None}}, "client_clip"),
        ({"inputs": {"record_rate": 0.2}}, "lacks it; use a newer run"),
        ({"inputs": {**INPUTS, "attempts": 29}}, "every round had at least one"),
        ({"inputs": {**INPUTS, "effective_record_clip": 0.9}}, "includes R"),
        ({"inputs": {**INPUTS, "validation": "proof"}}, "N, where validation"),
        ({"inputs": {**INPUTS, "proof_points": 8}}, "N, where validation"),
        ({"predictions": np.array(["a"])}, "array of numbers"),
        # One value a test point.
        *(
            ({"losses": np.zeros(each)}, "one value a test point")
            for each in (0, (2, 2))
        ),
    ],
)
def test_what_is_no_finished_run_is_refused(
    tmp_path: Path, given: dict[str, object], said: str
) -> None:
    refused(said, run, tmp_path / "run", **given)
    with pytest.raises(Misconfiguration, match=r"no summary\.json"):
        FinishedRun.read(tmp_path)


def test_runs_of_one_task_stand_together_and_the_most_redrawn_coins_count(
    tmp_path: Path,
) -> None:
    first, second, third = (
        run(tmp_path / str(n), inputs=INPUTS | other, predictions=LABELS[:n])
        for n, other in (
            (3, {"redrawn_coins": 1}),
            (2, {"redrawn_coins": 3}),
            (1, {"rounds": 31}),
        )
    )
    assert Ensemble((first, second)).inputs.redrawn_coins == 3
    with pytest.raises(Misconfiguration, match="use one public test set"):
        Ensemble((first, second)).votes()
    for number, wrong in enumerate((0.5, True)):
        labels = np.array([wrong, wrong, wrong])
        odd = [run(tmp_path / f"{number}{i}", predictions=labels) for i in "ab"]
        with pytest.raises(Misconfiguration, match="labels are class indices"):
            Ensemble(tuple(odd)).votes()
    with pytest.raises(Misconfiguration, match="a run votes once"):
        Ensemble((first, first))
    with pytest.raises(Misconfiguration, match=r"differs from .* in rounds"):
        Ensemble((first, third))


def test_a_run_of_whole_owners_is_read_and_certified_by_full_steps_of_c(
    tmp_path: Path,
) -> None:
    """Their R' is β·2^−f, which may lie below R = C."""
    whole = {
        "protects": "owner",
        "record_rate": 1.0,
        "record_clip": 0.3,
        "client_clip": 0.3,
        "effective_record_clip": 0.2999992,
    }
    read = run(tmp_path / "owners", inputs=INPUTS | whole).inputs
    step = read.run(read.rounds).step(Adversary.CLIENT_LEVEL)
    assert step.noise_multiplier == pytest.approx(2**0.5 * 30.0, rel=1e-5)
    with pytest.raises(Misconfiguration, match="R' includes R"):
        run(tmp_path / "records", inputs=INPUTS | whole | {"protects": "record"})
