"""What a module brings besides its shapes: weights that somebody chose, a file of them, buffers."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from tests.rig.model_corpus import TRAINED
from tests.rig.tasks import task_of, task_with
from torch import nn
from torch.nn import functional

from precad.aggregator.training.model_store import ModelStore
from precad.cli.main import app
from precad.client import load_initial, model_section
from precad.client.gradients.own_weights import check_buffers, check_weights
from precad.client.gradients.rehearsal import rehearse
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
from precad.common.model import initial_vector, save_model
from precad.common.task import Task
from precad.simulation import simulate

GENERATOR = np.random.default_rng(9)
X = GENERATOR.normal(size=(60, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


def fresh() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def trained(steps: int = 60) -> nn.Module:
    """As somebody trains it on public data."""
    torch.manual_seed(1)
    module = fresh()
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(module(torch.from_numpy(X)), torch.from_numpy(Y)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def task_from(module: nn.Module, path: Path) -> Task:
    save_file(module.state_dict(), path)
    return task_with({"model": model_section(module, "custom", initial_file=path)})


def hand_over(module: nn.Module, task: Task) -> None:
    rehearse(module, functional.cross_entropy, as_records((X, Y)), task, most=20)


def test_chosen_weights_are_refused_with_both_ways_out() -> None:
    """They were replaced by the seed's without a word."""
    module = trained()
    task = task_of(module, "uniform")
    both = r"--from FILE.*load_initial\(net, task\)"
    for check in (hand_over, lambda net, of: simulate(of, (X, Y), model=net, clients=2)):
        with pytest.raises(Misconfiguration, match=both):
            check(module, task)
    hand_over(load_initial(module, task), task)


def scaled(factor: float, layer: int = 0) -> Callable[[nn.Module], None]:
    def change(module: nn.Module) -> None:
        with torch.no_grad():
            module[layer].weight.mul_(factor)  # type: ignore[index]

    return change


def normal(module: nn.Module) -> None:
    nn.init.normal_(module[3].weight, std=1.0)  # type: ignore[index]


@pytest.mark.parametrize("change", [scaled(3.0), scaled(0.3), scaled(0.0), normal, scaled(0.9, 1)])
def test_other_weights_than_layers_draw_are_chosen(change: Callable[[nn.Module], None]) -> None:
    module = fresh()
    change(module)
    with pytest.raises(Misconfiguration, match="has weights of its own"):
        check_weights(module, task_of(module, "uniform").model)


def test_a_few_weights_that_are_all_one_number_are_chosen() -> None:
    module = nn.Linear(3, 2)
    nn.init.constant_(module.weight, 7.0)
    with pytest.raises(Misconfiguration, match=r"parameter weight.*has weights of its own"):
        check_weights(module, task_of(module, "uniform").model)


def test_what_is_the_task_s_own_start_is_no_choice() -> None:
    module = fresh()
    nn.init.zeros_(module[0].bias)  # type: ignore[index]
    check_weights(module, task_of(module, "uniform").model)
    nn.init.ones_(module[0].bias)  # type: ignore[index]
    with pytest.raises(Misconfiguration, match=r"parameter 0\.bias"):
        check_weights(module, task_of(module, "uniform").model)


def test_weights_as_layers_draw_them_are_nobody_s_choice() -> None:
    generator = torch.random.get_rng_state()
    for make, _ in TRAINED.values():
        for seed in range(5):
            torch.manual_seed(seed)
            module = make()
            check_weights(module, task_of(module, "uniform").model)
    torch.random.set_rng_state(generator)
    module = fresh()
    check_weights(module, task_of(module, "uniform").model)
    assert torch.equal(torch.random.get_rng_state(), generator) is False  # only fresh() drew


# --- a file of weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [TypeError, RuntimeError, NotImplementedError])
def test_a_layer_that_can_t_draw_again_passes(error: type[Exception]) -> None:
    class Own(nn.Linear):
        def reset_parameters(self) -> None:
            if hasattr(self, "made"):
                raise error
            self.made = True
            super().reset_parameters()

    module = nn.Sequential(Own(6, 2))
    before = torch.get_rng_state()
    hand_over(module, task_of(module, "zeros"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_file_s_weights_are_where_everybody_starts(tmp_path: Path) -> None:
    module = trained()
    task = task_from(module, tmp_path / "w.safetensors")
    own = torch.cat([tensor.detach().ravel() for tensor in module.parameters()]).double().numpy()
    assert (initial_vector(task.model) == own).all()
    stores = [ModelStore(task, tmp_path / name / "model.safetensors") for name in ("a", "b")]
    assert stores[0].current.digest == stores[1].current.digest
    assert (stores[0].theta() == own).all()
    hand_over(module, task)
    hand_over(fresh(), task)
    other = trained(200)
    with pytest.raises(Misconfiguration, match="starts from the file's weights"):
        hand_over(other, task)


def test_the_digest_is_of_the_weights_and_not_of_their_place(tmp_path: Path) -> None:
    module = trained()
    one = task_from(module, tmp_path / "one.safetensors")
    double = copy.deepcopy(module).double()
    assert task_from(double, tmp_path / "two.safetensors").digest == one.digest
    assert task_from(trained(61), tmp_path / "three.safetensors").digest != one.digest
    assert task_of(module, "uniform").digest != one.digest


def other_weights(path: Path) -> None:
    save_file(trained(61).state_dict(), path)


def pickled(path: Path) -> None:
    class Dangerous:
        def __reduce__(self) -> Any:
            return (path.with_suffix(".ran").touch, ())

    path.write_bytes(pickle.dumps(Dangerous()))


def no_number(path: Path) -> None:
    state = trained().state_dict()
    state["0.bias"][0] = torch.nan
    save_file(state, path)


def half_of_it(path: Path) -> None:
    state = trained().state_dict()
    del state["3.bias"]
    save_file(state, path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_weights, "has other weights than the task.*from whoever made the task"),
        (pickled, "can't be read.*give a safetensors file"),
        (no_number, r"tensor 0\.bias.*must be finite"),
        (half_of_it, r"tensor 3\.bias = 'absent'"),
        (Path.unlink, "isn't there: everybody has it beside the task's file"),
    ],
)
def test_another_file_than_the_tasks_is_refused(
    change: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    task = task_from(trained(), path)
    change(path)
    for look in (lambda: hand_over(trained(), task), lambda: ModelStore(task, tmp_path / "m")):
        with pytest.raises(Misconfiguration, match=said):
            look()
    assert not path.with_suffix(".ran").exists()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards_with_weights.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def Net(scale=2.0):\n    net = nn.Sequential(nn.Linear(6, 2))\n"
        "    net.register_buffer('scale', torch.full((6,), scale))\n    return net\n\n"
        "def Other():\n    return Net(3.0)\n"
    )
    (tmp_path / "public").mkdir()
    return tmp_path


NEW = ("--model", "wards_with_weights:Net", "--records", "3x600", "--epsilon", "3")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"scale": torch.full((6,), 3.0)}, "tensor scale.*differs from the model's"),
        ({"1.weight": torch.zeros(2, 2)}, r"tensor 1\.weight.*isn't in the model"),
        ({"0.weight": torch.zeros(3, 6)}, r"tensor 0\.weight.*of shape \[2, 6\]"),
        ({"0.weight": torch.zeros(2, 6).bfloat16()}, "bfloat16.*float32 or float64"),
    ],
)
def test_a_task_is_made_from_weights(
    changes: dict[str, torch.Tensor], said: str, wards: Path
) -> None:
    state = {
        "0.weight": torch.arange(12.0).reshape(2, 6),
        "0.bias": torch.tensor([0.5, -0.5]),
        "scale": torch.full((6,), 2.0),
    }
    save_file(state | changes, wards / "public" / "start.safetensors")
    result = run("task", "new", "t.toml", *NEW, "--from", "public/start.safetensors")
    if said:
        assert result.exit_code == 2, result.exception
        assert re.search(said, result.stderr)
        assert not (wards / "start.safetensors").exists()
        return
    assert result.exit_code == 0, result.stderr
    task = Task.load(wards / "t.toml")
    assert Path(str(task.model.initial_file)) == wards / "start.safetensors"
    assert initial_vector(task.model)[:13].tolist() == [*range(12), 0.5]
    assert [buffer.name for buffer in task.model.buffers] == ["scale"]
    assert str(task.digest) in run("task", "check", "t.toml").stdout
    (wards / "start.safetensors").rename(wards / "gone")
    assert "isn't there" in run("task", "check", "t.toml").stderr
    (wards / "gone").rename(wards / "start.safetensors")
    # Another folder, the same digest: nothing of a place is agreed on.
    (wards / "there").mkdir()
    for name in ("t.toml", "start.safetensors"):
        (wards / name).rename(wards / "there" / name)
    moved = Task.load(wards / "there" / "t.toml")
    assert moved.digest == task.digest
    assert initial_vector(moved.model)[12] == 0.5


def test_a_trained_model_is_applied_with_the_task_s_buffers(wards: Path) -> None:
    assert run("task", "new", "t.toml", *NEW).exit_code == 0
    task = Task.load(wards / "t.toml")
    save_model(wards / "m.safetensors", task, 1, initial_vector(task.model))
    np.savez(wards / "new.npz", x=X)
    predict = ("predict", "new.npz", "--task", "t.toml", "--model-file", "m.safetensors")
    assert run(*predict, "--model", "wards_with_weights:Net").exit_code == 0
    other = run(*predict, "--model", "wards_with_weights:Other")
    assert other.exit_code == 2
    assert "buffer scale" in other.stderr


@pytest.mark.parametrize(
    "values",
    [{"initial": "file"}, {"initial": "file", "initial_file": "w"}, {"initial_file": "w"},
     {"initial_digest": "0" * 64}],
)  # fmt: skip
def test_file_and_digest_belong_together(values: dict[str, str]) -> None:
    with pytest.raises(Misconfiguration, match="--from WEIGHTS writes all three"):
        task_with({f"model.{name}": value for name, value in values.items()})


# --- buffers -------------------------------------------------------------------------------------


class Scaled(nn.Module):
    """A fixed scaler in a buffer, and one that is only an attribute."""

    def __init__(self, scale: float = 2.0, shift: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((6,), scale))
        self.shift, self.linear = torch.full((6,), shift), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear((x - self.shift) / self.scale)  # type: ignore[operator]
        return found


def test_owners_with_other_buffers_are_refused_before_they_enrol() -> None:
    """They trained on, one digest for all, one at 93.9 and one at 90.9 %."""
    task = task_of(Scaled())
    hand_over(Scaled(), task)
    hand_over(Scaled().double(), task)
    for other, name in ((Scaled(2.5), "scale"), (Scaled(shift=1.5), "shift")):
        with pytest.raises(Misconfiguration, match=f"buffer {name}.*other numbers than the task's"):
            hand_over(other, task)
        assert task_of(other).digest != task.digest
    plain = nn.Sequential(nn.Linear(6, 2))
    with pytest.raises(Misconfiguration, match=r"buffer scale.*is missing: give the module"):
        check_buffers(plain, task.model)
    values = task.model_dump(mode="json")
    values["model"]["buffers"] = []
    without = Task.parse(values)
    assert without.digest != task.digest
    with pytest.raises(Misconfiguration, match=r"buffer scale.*isn't in the task.*model_section"):
        hand_over(Scaled(), without)


def test_a_task_without_buffers_or_file_has_the_digest_that_it_had() -> None:
    text = task_of(nn.Linear(6, 2)).canonical.decode()
    assert not any(word in text for word in ("buffers", "initial_file", "initial_digest"))
    assert isinstance(task_of(nn.Linear(6, 2)).digest, Digest)
