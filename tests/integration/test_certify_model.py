"""`precad certify smoothing` of a trained model: votes are drawn, kept, and certified."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from research.robustness.models import make
from tests.rig.commands import document, refused, said
from tests.rig.tasks import task_with

from precad.cli.task_planning import written
from precad.client.gradients.torch_models import model_section
from precad.client.participation import TrainedModel
from precad.common.model import model_digest


@pytest.fixture
def trained(tmp_path: Path) -> list[str]:
    """Options that name a task, a model that tells two halves apart, and records."""
    model = model_section(make("logistic", 4, 2), "logistic")
    task = task_with({"model": model, "objective": {"name": "dp-gaussian", "noise": 0.5}})
    (tmp_path / "task.toml").write_text(written(task, "a test"))
    theta = np.array([[5.0, 5, 0, 0], [-5.0, -5, 0, 0]]).ravel()
    theta = np.concatenate([theta, [0.0, 0.0]])
    digest = model_digest(task.digest, 0, task.model.parameters, theta)
    TrainedModel(task, 0, theta, digest).save(tmp_path / "m.safetensors")
    x = np.array([[1, 1, 0, 0], [-1, -1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]], np.float32)
    np.savez(tmp_path / "held-out.npz", x=x, y=np.array([0, 1, 1, 0]))
    return [
        *("--task", str(tmp_path / "task.toml"), "--model-file", str(tmp_path / "m.safetensors")),
        *("--data", str(tmp_path / "held-out.npz"), "--copies", "2000"),
    ]


votes = partial(document, "certify", "smoothing")


def test_a_trained_model_is_certified_at_its_objectives_noise(trained: list[str]) -> None:
    found = votes(*trained)
    assert found["sigma"] == 0.5
    assert [point.get("label") for point in found["points"]] == [0, 1, 0, None]
    # A linear model: the true radius is the distance to its plane, √2.
    for point in found["points"][:3]:
        assert 0.5 < point["radius"] <= 2**0.5
    assert (found["certified_accuracy"][0], found["abstained"]) == ({"radius": 0, "share": 0.5}, 1)


def test_kept_votes_are_gone_on_with_and_a_draw_repeats(trained: list[str], tmp_path: Path) -> None:
    keep = ["--keep", str(tmp_path / "votes.jsonl")]
    first = votes(*trained, *keep, "--sigma", "1")
    again = votes(*trained, *keep, "--sigma", "1")
    repeated = votes(*trained, "--sigma", "1", "--draw", first["draw"])
    assert first == again == repeated
    told = refused("certify", "smoothing", *trained, *keep, "--sigma", "2")
    assert "name another file" in told


def test_people_get_tables_and_a_picture(trained: list[str], tmp_path: Path) -> None:
    plot = ("--plot", tmp_path / "radius.png", "--first", "2")
    shown = said("certify", "smoothing", *trained, *plot)
    assert "Certified accuracy" in shown
    assert "--draw" in shown
    assert (tmp_path / "radius.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a file of votes, or a model"),
        (["--data", "x.npz"], "--config"),
        (["votes.npy"], "say how much noise"),
        (["votes.npy", "--data", "x.npz"], "leave it out"),
    ],
)
def test_what_is_missing_or_beside_the_point_is_named(options: list[str], said: str) -> None:
    assert said in refused("certify", "smoothing", *options)
