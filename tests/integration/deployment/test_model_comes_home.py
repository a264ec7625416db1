"""What an owner has after its training: processes of `precad join` against real servers."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.integration.deployment.conftest import Deploy, limit_of
from tests.rig.commands import document, precad
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import said

from precad.cli.local_deployment import LINGER_S, LocalDeployment
from precad.client import TrainedModel, load_vector
from precad.client.gradients.torch_models import logistic
from precad.client.records.read_records import write_client_data
from precad.client.server_statements import read_models
from precad.common.identifiers import ClientId
from precad.common.model import load_model, model_digest, weights_digest

ROUNDS = 4
ALLOWED = 2
FEATURES = 3
START = np.array([0.25] * 2 * FEATURES + [1.0] * 2)
STAYS, LEAVES = "ward-stays", "ward-leaves"


@dataclass(frozen=True, slots=True)
class Trained:
    deployment: LocalDeployment
    x: Any
    y: Any

    def state(self, name: str) -> Path:
        return self.deployment.folder / "state" / name

    @property
    def server_model(self) -> Path:
        return self.state("server-a") / "model.safetensors"

    def says(self, *arguments: object) -> str:
        ended = precad(*arguments)
        assert ended.exit_code == 0, ended.output
        return ended.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, deploy_once: Deploy) -> Any:
    weights = tmp_path_factory.mktemp("public") / "start.safetensors"
    save_file({"1.weight": torch.full((2, FEATURES), 0.25), "1.bias": torch.ones(2)}, weights)
    changes = {
        "model.initial": "file",
        "model.initial_file": str(weights),
        "model.initial_digest": weights_digest(START),
        "training.rounds": ROUNDS,
    }
    rng = np.random.default_rng(5)
    x = rng.normal(size=(80, FEATURES)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    data = {ClientId(name): (x, y) for name in (STAYS, LEAVES)}
    with deploy_once(changes, data=data, linger_s=LINGER_S) as deployment:
        folder, task = deployment.folder, deployment.task
        write_client_data(folder / "records", ClientId("held-out"), x[:20], y[:20])
        add(folder / f"{STAYS}.toml", 'held_out = "records/held-out.npz"')
        add(folder / f"{LEAVES}.toml", f"epsilon_limit = {limit_of(task, ALLOWED)}")
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait((STAYS, LEAVES), DEADLINE_S) == {STAYS: 0, LEAVES: 3}
        # The dealer hears of both servers' end, and stays: its settings don't say otherwise.
        left = "left: its training is over"
        until(lambda: deployment.log("dealer").count(left) == 2, lambda: deployment.log("dealer"))
        assert deployment.processes["dealer"].poll() is None
        deployment.stop()
        yield Trained(deployment, x, y)


def test_the_doctor_says_that_the_training_is_finished_though_nobody_answers(
    trained: Trained,
) -> None:
    said = trained.says("doctor", "--config", trained.deployment.folder / f"{STAYS}.toml")
    model = trained.state(STAYS) / "model.safetensors"
    assert f"! finished training: {model} is its final model" in said
    # No mistake, and nothing to begin.
    assert [said.count(words) for words in ("! server ", "✗", "precad join")] == [2, 0, 0]
    # An owner who left before the end needs the servers.
    assert precad("doctor", "--config", trained.deployment.folder / f"{LEAVES}.toml").exit_code == 1


def test_an_owner_hears_what_its_limit_covers_before_it_starts_and_why_it_ended(
    trained: Trained,
) -> None:
    log = trained.deployment.log(LEAVES)
    covers = log.index(f"allows {ALLOWED} of the task's {ROUNDS} rounds: it ends this owner's part")
    assert covers < log.index("the owner's limit ended its part before the training's end")
    assert "no limit of your own" in trained.deployment.log(STAYS)


def test_an_owner_that_has_the_final_model_waits_for_nobody(trained: Trained) -> None:
    """Nor one that was told to wait for seconds; the task lets it wait for five minutes."""
    folder = trained.deployment.folder
    assert said(folder, "join", "--config", folder / f"{STAYS}.toml")[0] == 0
    status, printed = said(
        folder, "join", "--wait", "0.0005", "--config", folder / f"{LEAVES}.toml"
    )
    assert (status, "refuses connections" in printed) == (1, True), printed


def test_a_limit_is_raised_with_a_word(trained: Trained) -> None:
    folder = trained.deployment.folder
    settings, higher = folder / f"{LEAVES}.toml", folder / "higher.toml"
    _, rest = settings.read_text("utf-8").split("\n", 1)
    higher.write_text(f"epsilon_limit = 90.0\n{rest}", encoding="utf-8")
    status, printed = said(folder, "join", "--wait", "0.0003", "--config", higher)
    assert (status, "--raise-limit" in printed) == (2, True)
    wait = ("join", "--wait", "0.0003", "--raise-limit", "--config", higher)
    status, printed = said(folder, *wait)
    assert status == 1  # no server is there
    assert f"allows {ROUNDS - ALLOWED} more, after {ALLOWED}, of the task's {ROUNDS}" in printed


def add(settings: Path, line: str) -> None:
    settings.write_text(f"{line}\n{settings.read_text('utf-8')}", encoding="utf-8")


def test_who_stays_has_the_servers_model_and_predicts_the_same(trained: Trained) -> None:
    task = trained.deployment.task
    at_server = load_model(trained.server_model, task)
    own = TrainedModel.load(trained.state(STAYS) / "model.safetensors", task)
    assert (own.version, own.digest) == (ROUNDS, at_server.digest)
    assert own.theta.tobytes() == at_server.theta.tobytes()
    fresh = own.load_into(logistic(FEATURES, 2))
    reference = logistic(FEATURES, 2)
    load_vector(reference, at_server.theta)
    inputs = torch.from_numpy(trained.x)
    with torch.no_grad():
        assert torch.equal(fresh(inputs), reference(inputs))
    assert any(bool(weight.any()) for weight in fresh.parameters())


def test_who_leaves_at_its_limit_has_the_newest_model_that_it_saw(trained: Trained) -> None:
    task = trained.deployment.task
    own = TrainedModel.load(trained.state(LEAVES) / "model.safetensors", task)
    served = read_models(trained.state(STAYS) / "models.log")
    assert (own.version, own.digest) == (ALLOWED, served[task.digest, ALLOWED])
    own.load_into(logistic(FEATURES, 2))


def test_servers_and_owners_start_from_the_task_s_file_of_weights(trained: Trained) -> None:
    task = trained.deployment.task
    served = read_models(trained.state(STAYS) / "models.log")
    theta = START.astype(np.float32)
    assert served[task.digest, 0] == model_digest(task.digest, 0, task.model.parameters, theta)


def test_the_file_is_read_without_precad_and_says_what_it_is(trained: Trained) -> None:
    path = trained.state(STAYS) / "model.safetensors"
    module = logistic(FEATURES, 2)
    module.load_state_dict(load_file(path))
    own = TrainedModel.load(path, trained.deployment.task)
    bias = dict(module.named_parameters())["1.bias"].detach().numpy()
    assert (bias == own.weights["1.bias"].astype(np.float32)).all()
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    assert (metadata["task_name"], metadata["version"]) == ("small", str(ROUNDS))
    private = json.loads(metadata["private_training"])
    assert (private["noise_multiplier"], private["rounds"]) == (2.0, ROUNDS)
    assert re.search(r"ε = \d\.\d+, δ = 1e-05.* all 4 rounds", metadata["guarantee"])
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_rounds_are_in_the_state_folder_and_in_the_logs_a_line_each(trained: Trained) -> None:
    text = (trained.state(STAYS) / "history.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["round"], row["counted"]) for row in rows] == [
        (str(n), "True") for n in range(1, ROUNDS + 1)
    ]
    tried = [float(row["validation_accuracy"]) for row in rows if row["validation_accuracy"]]
    assert 0 <= min(tried) <= max(tried) <= 1
    log = trained.deployment.log(STAYS)
    for number in range(1, ROUNDS + 1):
        assert f"INFO round {number} of {ROUNDS}: counted; ε" in log
    assert "held-out" not in log
    for server in ("server-a", "server-b"):
        lines = re.findall(r"INFO version (\d+) is made", trained.deployment.log(server))
        assert lines == [str(n) for n in range(1, ROUNDS + 1)]


def test_predict_and_evaluate_take_the_owners_settings(trained: Trained, tmp_path: Path) -> None:
    settings = trained.deployment.folder / f"{STAYS}.toml"
    task = trained.deployment.task
    module = TrainedModel.load(trained.server_model, task).load_into(logistic(FEATURES, 2))
    with torch.no_grad():
        shares = torch.softmax(module(torch.from_numpy(trained.x)), dim=1).numpy()
    np.savez(tmp_path / "new.npz", x=trained.x)
    printed = trained.says("predict", tmp_path / "new.npz", "--config", settings)
    rows = list(csv.DictReader(printed.splitlines()))
    assert [int(row["class"]) for row in rows] == shares.argmax(axis=1).tolist()
    assert float(rows[3]["probability_1"]) == pytest.approx(shares[3, 1], abs=1e-5)

    trained.says("predict", tmp_path / "new.npz", "-c", settings, "--out", tmp_path / "p.npy")
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), shares, atol=1e-6)

    np.savez(tmp_path / "known.npz", x=trained.x, y=trained.y)
    model = ("--task", settings.with_name("task.toml"), "--model-file", trained.server_model)
    told = document("evaluate", tmp_path / "known.npz", *model)
    right = float((shares.argmax(axis=1) == trained.y).mean())
    loss = float(-np.log(shares[np.arange(len(trained.y)), trained.y]).mean())
    assert (told["accuracy"], told["loss"]) == (pytest.approx(right), pytest.approx(loss, rel=1e-4))
    assert told["records"] == len(trained.y)
