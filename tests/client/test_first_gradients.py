"""Before enrolment: a gradient is tried as loudly as a loss, remedies are the cause's,
and a model's file may be a script."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.rig import refusals
from tests.rig.tasks import task_of
from torch import nn
from torch.nn import functional

from precad.client import owner_settings
from precad.client.gradients import rehearsal, torch_models
from precad.client.records.torch_records import as_records

GENERATOR = np.random.default_rng(48)
X = GENERATOR.normal(size=(40, 5)).astype(np.float32)
Y = GENERATOR.integers(0, 2, 40)


class Net(nn.Module):
    """Two layers, and what a subclass does between them."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 16)
        self.b = nn.Linear(16, 2)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.a(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.b(self.between(x))
        return outputs


class NaNSlope(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.a(x)
        return torch.where(h > 1e9, torch.sqrt(h - 1e9), h)


class WithoutGradient(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return super().between(x)


class Detached(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return super().between(x).detach()


class Rounded(Net):
    """Of a step the slope is zero wherever it is one."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.a(x)
        return torch.round(h)


class NeverCalled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 2)


def check(model: nn.Module, initial: str = "uniform") -> None:
    rehearsal.rehearse(
        model,
        functional.cross_entropy,
        as_records((X, Y)),
        task_of(model, initial),
        most=20,
    )


def test_a_gradient_that_is_never_finite_is_refused_by_the_number_of_records() -> None:
    refusals.refused(
        "40 of 40 records have no finite gradient.*clamp", check, NaNSlope()
    )


@pytest.mark.parametrize("net", [WithoutGradient, Detached, Rounded])
def test_a_parameter_that_no_record_moves_is_named(net: type[Net]) -> None:
    refusals.refused("parameter a.weight.*is moved by no record", check, net())


def test_a_layer_that_is_never_called_is_named() -> None:
    refusals.refused("parameter head.weight.*leave it out", check, NeverCalled())


def test_a_start_at_zero_and_units_that_are_off_move_elsewhere() -> None:
    check(Net(), "zeros")
    for seed in range(10):
        torch.manual_seed(seed)
        check(nn.Sequential(nn.Linear(5, 1), nn.ReLU(), nn.Linear(1, 2)), "zeros")


def test_an_owner_whose_records_are_zeros_is_no_model_s_fault() -> None:
    net = nn.Sequential(nn.Linear(5, 2))
    rehearsal.rehearse(
        net,
        functional.cross_entropy,
        as_records((np.zeros_like(X), Y)),
        task_of(net),
        most=20,
    )


def test_tokens_that_are_padding_move_nothing_and_hide_nothing() -> None:
    net = nn.Sequential(
        nn.Embedding(9, 3, padding_idx=0), nn.Flatten(), nn.Linear(12, 2)
    )
    assert rehearsal.try_model(net, task_of(net, "uniform"), (4,)) is not None


def test_a_parameter_without_elements_is_refused_by_name() -> None:
    net = nn.Module()
    net.out = nn.Linear(5, 2)
    net.none = nn.Linear(5, 1)
    net.none.weight = nn.Parameter(torch.empty(0, 5))
    refusals.refused(
        "parameter none.weight.*has no elements",
        torch_models.model_section,
        net,
        architecture="own",
    )


class Listed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.Linear(16, 16)]

    def between(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.hidden[0](super().between(x))
        return h


class Slope(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(super().between(x).sum(), x, create_graph=True)
        return torch.tanh(self.a(slope))


class Double(Net):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return super().between(x) * torch.ones(16, dtype=torch.float64)


@pytest.mark.parametrize(
    ("net", "remedy"),
    [
        (nn.Sequential(nn.Linear(5, 16), nn.RReLU(), nn.Linear(16, 2)), "LeakyReLU"),
        (nn.Sequential(nn.GroupNorm(5, 5), nn.Linear(5, 2)), "fewer groups"),
        (Listed(), "nn.ModuleList"),
        (Slope(), "torch.func.grad"),
        (Double(), r"\.float\(\)"),
    ],
)
def test_a_remedy_is_the_cause_s(net: nn.Module, remedy: str) -> None:
    refusals.refused(remedy, check, net)
    # By task new, which has no records yet, too.
    task = task_of(net, "uniform")
    refusals.refused(remedy, rehearsal.try_model, net, task, (5,))


def test_a_loss_s_class_must_be_made() -> None:
    net = Net()
    refusals.refused(
        r"loss = 'MSELoss'.*MSELoss\(\)",
        rehearsal.rehearse,
        net,
        nn.MSELoss,
        as_records((X, Y)),
        task_of(net, "uniform"),
    )


def test_a_model_s_file_that_is_a_script_is_refused_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "its_script.py").write_text(
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        'parser.add_argument("--lr", required=True)\n'
        "parser.parse_args()\n"
    )
    monkeypatch.chdir(tmp_path)
    before = list(sys.argv)
    refusals.refused(
        "its_script:Net.*ended the program while it was loaded.*__main__",
        owner_settings.own_model,
        "its_script:Net",
    )
    assert sys.argv == before
    # Nor is it torch's own words where torchvision is another build's.
    (tmp_path / "its_vision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')\n"
    )
    refusals.refused(
        "its_vision:Net.*torchvision is of another build than torch.*--index-url",
        owner_settings.own_model,
        "its_vision:Net",
    )
    assert "usage: its_script" in capsys.readouterr().err
