"""Cells of experiments: kept whatever else writes, or fails to, and taken up where they
can be."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from research.papers.dpcert_models import WEIGHTS, weights_of
from research.robustness.train import first_vector, module_of
from research.study import EXPERIMENTS, Result, Scale, Settings, Surroundings
from research.study.environment import environment
from research.study.kept import Kept
from research.study.run import PARTIAL, _Place, run
from safetensors.numpy import save

from precad.client.gradients.torch_models import model_section
from precad.common.errors import Misconfiguration
from precad.common.model import tensors
from precad.common.task_schema import ModelSection
from precad.simulation.datasets import load


def test_a_cell_whose_result_cannot_be_written_goes_on_from_its_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def measure(_: Settings, around: Surroundings) -> dict[str, int]:
        file = around.checkpoint
        assert file is not None
        first, theta, _ = file.found(torch.zeros(1), ())
        for step in range(first, 3):
            steps.append(step)
            theta += 1
            file.keep(step + 1, theta, ())
        return {"square": int(theta.item())}

    one = replace(
        EXPERIMENTS["xie-fig9"],
        settings={Scale.SMALL: {"data": None}},
        cells=lambda _: [{"number": 3}],
        measure=measure,
    )
    monkeypatch.setitem(EXPERIMENTS._parts, name := "squares", one)
    with monkeypatch.context() as disk:
        full = OSError(errno.ENOSPC, "No space left on device")
        disk.setattr(Kept, "add", Mock(side_effect=full))
        with pytest.raises(OSError, match="No space"):
            run(name, Scale.SMALL, tmp_path)
    (found,) = run(name, Scale.SMALL, tmp_path)
    assert (found.values, steps) == ({"square": 3}, [0, 1, 2])
    assert not list((tmp_path / PARTIAL).iterdir())


def test_runs_that_write_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    """In threads, which the file's lock keeps apart as it does processes."""
    places = {0: "here", 100: "elsewhere", 200: "here"}

    def write(first: int) -> None:
        kept = Kept(tmp_path, "squares", Scale.SMALL)
        for number in range(first, first + 20):
            result = Result({"number": number}, {"square": number**2}, 0.1)
            kept.add(result, {"device": places[first]})

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, places))
    kept = Kept(tmp_path, "squares", Scale.SMALL)
    numbers = [first + n for first in places for n in range(20)]
    found = kept.of([{"number": n} for n in numbers])
    assert [result.values["square"] for result in found] == [n**2 for n in numbers]
    document = json.loads(kept.path.read_text())
    devices = [each["device"] for each in document["environments"]]
    assert sorted(devices) == ["elsewhere", "here"]
    for row in document["cells"]:
        assert (
            devices[row["environment"]]
            == places[row["settings"]["number"] // 100 * 100]
        )


def test_half_a_cell_of_another_processor_is_begun_anew(tmp_path: Path) -> None:
    """It may add in another order, so that what goes on there has other last bits."""
    at = _Place(None, "cpu", tmp_path)
    here, cell = environment("cpu"), {"number": 0}
    file = at.checkpoint("squares", cell, here)
    assert at.around("squares", cell).checkpoint == file
    others: list[Settings] = [
        {"device": "another"},
        {"instructions": "DEFAULT"},
        {"versions": {}},
    ]
    for other in others:
        assert at.checkpoint("squares", cell, {**here, **other}) != file
    assert at.checkpoint("squares", cell, {**here, "cores": 1}) == file


def test_fine_tuning_starts_from_weights_of_the_models_own_shapes(
    tmp_path: Path,
) -> None:
    data = load("digits")
    described = model_section(
        module_of("mlp", data), architecture="mlp", initial="uniform", initial_seed=1
    )
    section = ModelSection.model_validate(described)
    drawn = tensors(first_vector(section, None), section.parameters)
    names = list(drawn)
    given = {names[0]: np.full(drawn[names[0]].shape, 0.5), names[-1]: np.zeros(1000)}
    (tmp_path / WEIGHTS).write_bytes(save(given))
    digest, weights = weights_of(tmp_path)
    started = tensors(first_vector(section, weights), section.parameters)
    assert len(digest) == 12
    for name in names:
        assert (started[name] == (0.5 if name == names[0] else drawn[name])).all()
    with pytest.raises(Misconfiguration, match="put public weights"):
        weights_of(tmp_path / "nowhere")
