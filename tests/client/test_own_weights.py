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
from safetensors.torch import save_file
from tests.rig.commands import precad
from tests.rig.commands import refused as said_to
from tests.rig.model_corpus import TRAINED
from tests.rig.tasks import task_of, task_with
from torch import nn
from torch.nn import functional, init

from precad.aggregator.training.model_store import ModelStore
from precad.client import load_initial, model_section
from precad.client.gradients.own_weights import check_buffers, check_weights
from precad.client.gradients.rehearsal import rehearse
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector, save_model
from precad.common.task import Task
from precad.simulation import simulate

GENERATOR = np.random.default_rng(9)
X = GENERATOR.normal(size=(60, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


def fresh() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def trained(steps: int = 60) -> nn.Sequential:
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


def look(module: nn.Module) -> None:
    """Whether somebody chose its weights."""
    check_weights(module, task_of(module, "uniform").model)


def test_chosen_weights_are_refused_with_both_ways_out() -> None:
    """They were replaced by the seed's without a word."""
    module = trained()
    task = task_of(module, "uniform")
    both = r"--from FILE.*load_initial\(net, task\)"
    for check in (hand_over, lambda net, of: simulate(of, (X, Y), model=net, clients=2)):
        with pytest.raises(Misconfiguration, match=both):
            check(module, task)
    hand_over(load_initial(module, task), task)


@torch.no_grad()
def scale(module: Any, factor: float, layer: int = 0) -> None:
    module[layer].weight.mul_(factor)


@pytest.mark.parametrize(
    ("module", "change", "said"),
    [
        (fresh(), lambda net: scale(net, 3.0), ""),
        (fresh(), lambda net: scale(net, 0.3), ""),
        (fresh(), lambda net: scale(net, 0.0), ""),
        (fresh(), lambda net: init.normal_(net[3].weight, std=1.0), ""),
        (fresh(), lambda net: scale(net, 0.9, 1), ""),
        (fresh(), lambda net: init.ones_(net[0].bias), r"parameter 0\.bias"),
        # A few weights that are all one number.
        (nn.Linear(3, 2), lambda net: init.constant_(net.weight, 7.0), "parameter weight"),
    ],
)
def test_other_weights_than_layers_draw_are_chosen(
    module: nn.Module, change: Callable[[Any], object], said: str
) -> None:
    change(module)
    with pytest.raises(Misconfiguration, match=f"{said}.*has weights of its own"):
        look(module)


def test_weights_as_layers_draw_them_and_the_task_s_own_start_are_nobody_s_choice() -> None:
    for make, _ in TRAINED.values():
        for seed in range(5):
            torch.manual_seed(seed)
            look(make())
    module = fresh()
    init.zeros_(module[0].bias)  # type: ignore[arg-type]
    before = torch.get_rng_state()
    look(module)
    assert torch.equal(torch.get_rng_state(), before)


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
    stores = [ModelStore(task, tmp_path / name / "model.safetensors") for name in ("a", "b")]
    assert stores[0].current.digest == stores[1].current.digest
    for start in (initial_vector(task.model), stores[0].theta()):
        assert (start == own).all()
    hand_over(module, task)
    hand_over(fresh(), task)
    with pytest.raises(Misconfiguration, match="starts from the file's weights"):
        hand_over(trained(200), task)
    # The digest is of the weights and not of their place.
    double = task_from(copy.deepcopy(module).double(), tmp_path / "two.safetensors")
    others = (task_from(trained(61), tmp_path / "three.safetensors"), task_of(module, "uniform"))
    assert double.digest == task.digest
    assert task.digest not in {each.digest for each in others}


class Dangerous:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (self.mark.touch, ())


def saved(**changes: torch.Tensor | None) -> Callable[[Path], None]:
    """The trained module's tensors, some of them changed or left out."""

    def write(path: Path) -> None:
        state = trained().state_dict() | changes
        save_file({name: tensor for name, tensor in state.items() if tensor is not None}, path)

    return write


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            saved(**{"3.bias": torch.zeros(2)}),
            "has other weights than the task.*from whoever made the task",
        ),
        (
            lambda path: path.write_bytes(pickle.dumps(Dangerous(path.with_suffix(".ran")))),
            "can't be read.*give a safetensors file",
        ),
        (saved(**{"0.bias": torch.full((8,), torch.nan)}), r"tensor 0\.bias.*must be finite"),
        (saved(**{"3.bias": None}), r"tensor 3\.bias = 'absent'"),
        (Path.unlink, "isn't there: everybody has it beside the task's file"),
    ],
    ids=["other weights", "pickled", "no number", "half of it", "gone"],
)
def test_another_file_than_the_tasks_is_refused(
    change: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    task = task_from(trained(), path)
    change(path)
    for take in (lambda: hand_over(trained(), task), lambda: ModelStore(task, tmp_path / "m")):
        with pytest.raises(Misconfiguration, match=said):
            take()
    assert not path.with_suffix(".ran").exists()


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


MODEL = "wards_with_weights:Net"
NEW = ("task", "new", "t.toml", "--model", MODEL, "--records", "3x600", "--epsilon", "3")
FROM = (*NEW, "--from", "public/start.safetensors")
STATE = {
    "0.weight": torch.arange(12.0).reshape(2, 6),
    "0.bias": torch.tensor([0.5, -0.5]),
    "scale": torch.full((6,), 2.0),
}


def test_a_task_is_made_from_weights_and_may_be_moved(wards: Path) -> None:
    save_file(STATE, wards / "public" / "start.safetensors")
    assert precad(*FROM).exit_code == 0
    task = Task.load(wards / "t.toml")
    assert Path(str(task.model.initial_file)) == wards / "start.safetensors"
    assert initial_vector(task.model)[:13].tolist() == [*range(12), 0.5]
    assert [buffer.name for buffer in task.model.buffers] == ["scale"]
    assert str(task.digest) in precad("task", "check", "t.toml").stdout
    # Another folder, the same digest: nothing of a place is agreed on.
    (wards / "there").mkdir()
    (wards / "start.safetensors").rename(wards / "there" / "start.safetensors")
    assert "isn't there" in precad("task", "check", "t.toml").stderr
    (wards / "t.toml").rename(wards / "there" / "t.toml")
    moved = Task.load(wards / "there" / "t.toml")
    assert (moved.digest, initial_vector(moved.model)[12]) == (task.digest, 0.5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": torch.full((6,), 3.0)}, "tensor scale.*differs from the model's"),
        ({"1.weight": torch.zeros(2, 2)}, r"tensor 1\.weight.*isn't in the model"),
        ({"0.weight": torch.zeros(3, 6)}, r"tensor 0\.weight.*of shape \[2, 6\]"),
        ({"0.weight": torch.zeros(2, 6).bfloat16()}, "bfloat16.*float32 or float64"),
    ],
)
def test_no_task_is_made_from_another_models_weights(
    change: dict[str, torch.Tensor], said: str, wards: Path
) -> None:
    save_file(STATE | change, wards / "public" / "start.safetensors")
    assert re.search(said, said_to(*FROM))
    assert not (wards / "start.safetensors").exists()


def test_a_trained_model_is_applied_with_the_task_s_buffers(wards: Path) -> None:
    assert precad(*NEW).exit_code == 0
    task = Task.load(wards / "t.toml")
    save_model(wards / "m.safetensors", task, 1, initial_vector(task.model))
    np.savez(wards / "new.npz", x=X)
    predict = ("predict", "new.npz", "--task", "t.toml", "--model-file", "m.safetensors")
    assert precad(*predict, "--model", "wards_with_weights:Net").exit_code == 0
    assert "buffer scale" in said_to(*predict, "--model", "wards_with_weights:Other")


def test_file_and_digest_belong_together() -> None:
    for values in (
        {"model.initial": "file"},
        {"model.initial": "file", "model.initial_file": "w"},
        {"model.initial_file": "w"},
        {"model.initial_digest": "0" * 64},
    ):
        with pytest.raises(Misconfiguration, match="--from WEIGHTS writes all three"):
            task_with(values)


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
    # A task without buffers or a file has the digest that it always had.
    text = task_of(plain).canonical.decode()
    assert not any(word in text for word in ("buffers", "initial_file", "initial_digest"))
