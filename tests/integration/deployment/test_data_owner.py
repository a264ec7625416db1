"""What a data owner has of its trainings, by `precad join` and by the SDK; README's
snippet."""

import csv
import json
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from examples.demo.local_processes import LINGER_S, LocalDeployment, write_client_data
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.integration.deployment.conftest import SERVERS, Deploy, set_in
from tests.rig.commands import document, precad
from tests.rig.documents import Document
from tests.rig.epsilons import record_epsilon
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import said
from torch.nn import functional
from torch.utils.data import TensorDataset

from precad.client import (
    DataOwner,
    Participation,
    RoundInfo,
    TrainedModel,
    server_statements,
)
from precad.client.gradients.torch_models import logistic
from precad.client.owner_settings import JoinSettings
from precad.common.identifiers import ClientId, Role
from precad.common.model import load_model, model_digest, weights_digest
from precad.common.wire.calls import ServerStatus

ROUNDS, ALLOWED = 4, 2
LIMIT = 0.9  # On ε, with room for so many rounds as ALLOWED, and no more


START = np.array([0.25] * 6 + [1.0] * 2)
STAYS, LEAVES = "ward-stays", "ward-leaves"
RNG = np.random.default_rng(5)
X = RNG.normal(size=(80, 3)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Trained:
    """Two owners had the same records; one left at its limit. Nobody runs any more."""

    deployment: LocalDeployment

    def state(self, name: str) -> Path:
        return self.deployment.folder / "state" / name

    def model(self, name: str) -> TrainedModel:
        return TrainedModel.load(
            self.state(name) / "model.safetensors", self.deployment.task
        )

    def settings(self, name: str) -> Path:
        return self.deployment.folder / f"{name}.toml"

    def joins(self, settings: Path, *options: str) -> tuple[int, str]:
        return said(self.deployment.folder, "join", *options, "--config", settings)


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, deploy_once: Deploy
) -> Iterator[Trained]:
    weights = tmp_path_factory.mktemp("public") / "start.safetensors"
    save_file({"1.weight": torch.full((2, 3), 0.25), "1.bias": torch.ones(2)}, weights)
    changes: Document = {
        "model.initial": "file",
        "model.initial_file": str(weights),
        "model.initial_digest": weights_digest(START),
        "training.rounds": ROUNDS,
    }
    data = {ClientId(name): (X, Y) for name in (STAYS, LEAVES)}
    with deploy_once(changes, data=data, linger_s=LINGER_S) as deployment:
        write_client_data(
            deployment.folder / "records", ClientId("held-out"), X[:20], Y[:20]
        )
        set_in(deployment, STAYS, held_out="records/held-out.npz")
        set_in(deployment, LEAVES, epsilon_limit=LIMIT)
        deployment.start_servers()
        deployment.start_clients()
        assert deployment.wait((STAYS, LEAVES), DEADLINE_S) == {STAYS: 0, LEAVES: 3}
        # The dealer hears of both servers' end, and ends too: nothing is left running.
        left = "left: its training is over"
        until(
            lambda: deployment.log("dealer").count(left) == 2,
            lambda: deployment.log("dealer"),
        )
        dealer = deployment.processes["dealer"]
        until(lambda: dealer.poll() == 0, lambda: deployment.log("dealer"))
        deployment.stop()
        yield Trained(deployment)


def test_an_owner_with_the_final_model_needs_no_server_and_another_does(
    trained: Trained,
) -> None:
    done = precad("doctor", "--config", trained.settings(STAYS))
    model = trained.state(STAYS) / "model.safetensors"
    assert f"! finished training: {model} is its final model" in done.stdout
    # No mistake, and nothing to begin.
    found = [done.stdout.count(words) for words in ("! server ", "✗", "precad join")]
    assert (done.exit_code, found) == (0, [2, 0, 0])
    assert precad("doctor", "--config", trained.settings(LEAVES)).exit_code == 1
    # The task lets it wait for five minutes.
    status, printed = trained.joins(trained.settings(STAYS))
    assert (status, "was missing" in printed) == (0, False)
    # Nor does it need any to say what it has missed.
    history = trained.state(STAYS) / "history.csv"
    whole = history.read_text("utf-8")
    history.write_text("".join(whole.splitlines(keepends=True)[:2]), "utf-8")
    status, printed = trained.joins(trained.settings(STAYS))
    words = f"WARNING this owner was missing in {ROUNDS - 1} of {ROUNDS} rounds"
    assert (status, words in printed) == (0, True), printed
    history.write_text(whole, "utf-8")
    # Whose limit isn't used up waits for servers, if only for two seconds.
    shutil.copy(trained.settings(STAYS), trained.settings("newcomer"))
    newcomer = set_in(trained.deployment, "newcomer", state="state/newcomer")
    status, printed = trained.joins(newcomer, "--wait", "0.0005")
    # Why it ends is on its last line.
    last = printed.splitlines()[-1]
    assert (status, last.startswith("precad: server A at 127.0.0.1:")) == (
        1,
        True,
    ), printed
    assert ("refuses connections" in printed, "Traceback" in printed) == (True, False)


def test_an_owner_whose_limit_is_used_up_ends_at_once_though_no_server_is_there(
    trained: Trained,
) -> None:
    """Its servers may be away for an hour, by its own word."""
    model = trained.state(LEAVES) / "model.safetensors"
    before = model.read_bytes()
    status, printed = trained.joins(trained.settings(LEAVES), "--wait", "1")
    assert status == 3
    assert f"allows 0 more, after {ALLOWED}, of the task's {ROUNDS} rounds" in printed
    assert f"this owner's part ended at round {ALLOWED} of {ROUNDS}: its mod" in printed
    assert "set a higher epsilon_limit and start again with --raise-limit" in printed
    assert ("reconnecting" in printed, "Traceback" in printed) == (False, False)
    assert model.read_bytes() == before
    # In Python alike.
    settings = JoinSettings.load(trained.settings(LEAVES))
    result = settings.data_owner().run()
    assert (result.ended, result.submitted) == ("budget", 0)
    assert result.model is not None
    assert (result.model.version, result.model_file) == (ALLOWED, model)


def test_a_submission_is_followed_through_the_logs_of_owner_a_and_b(
    trained: Trained,
) -> None:
    """By one name, its id, beside the same version and attempt."""
    log = trained.deployment.log(STAYS)
    sent = re.findall(r"(version \d+, attempt \d+), submission ([0-9a-f]{12})\n", log)
    assert len({submission for _, submission in sent}) == len(sent) >= ROUNDS
    for role in (Role.SERVER_A, Role.SERVER_B):
        servers = trained.deployment.log(role.value)
        for attempt, submission in sent:
            assert re.search(
                rf"{attempt}: \d of \d submissions count \(.*{STAYS} {submission}",
                servers,
            ), servers


def test_an_owner_hears_what_its_limit_covers_and_raises_it_with_a_word(
    trained: Trained,
) -> None:
    log = trained.deployment.log(LEAVES)
    covers = log.index(
        f"allows {ALLOWED} of the task's {ROUNDS} rounds: it ends this owner's part"
    )
    assert covers < log.index(
        "the owner's limit ended its part before the training's end"
    )
    ended = rf"this owner's part ended at round {ALLOWED} of {ROUNDS}: its model \w+ "
    assert re.search(ended, log)
    assert "final model" not in log
    # While it waited for the others, how many had come, and until when.
    waited = trained.deployment.log(STAYS) + log
    assert re.search(r"enrolled, 1 of at most 2 owners so far: .* [\d.]+ min", waited)
    # And of the rounds, a line each; in its state folder too.
    stays, numbers = (
        trained.deployment.log(STAYS),
        [str(n) for n in range(1, ROUNDS + 1)],
    )
    assert ("no limit of your own" in stays, "held-out" in stays) == (True, False)
    assert re.findall(rf"INFO round (\d+) of {ROUNDS}: counted; ε", stays) == numbers
    text = (trained.state(STAYS) / "history.csv").read_text("utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["round"], row["counted"]) for row in rows] == [
        (n, "True") for n in numbers
    ]
    tried = [
        float(row["validation_accuracy"]) for row in rows if row["validation_accuracy"]
    ]
    assert 0 <= min(tried) <= max(tried) <= 1
    for server in SERVERS:
        log = trained.deployment.log(server)
        played = re.findall(r"version (\d+), attempt \d+: \d+ of \d+ submissions", log)
        assert [str(int(version) + 1) for version in played] == numbers
    shutil.copy(trained.settings(LEAVES), trained.settings("higher"))
    higher = set_in(trained.deployment, "higher", epsilon_limit=90.0)
    status, printed = trained.joins(higher, "--wait", "0.0003")
    assert (status, "--raise-limit" in printed) == (2, True)
    status, printed = trained.joins(higher, "--wait", "0.0003", "--raise-limit")
    assert status == 1  # no server is there
    assert (
        f"allows {ROUNDS - ALLOWED} more, after {ALLOWED}, of the task's {ROUNDS}"
        in printed
    )


def test_a_data_set_joins_a_task_under_one_name(trained: Trained) -> None:
    """Another owner's settings, and the account of records that took part already."""
    shutil.copy(trained.settings(LEAVES), trained.settings("second"))
    account = trained.state(STAYS)
    second = set_in(trained.deployment, "second", account=str(account))
    before = (account / "participations.log").read_bytes()
    for command in (["join", "--wait", "0.0003"], ["doctor"]):
        done = precad(*command, "--config", second)
        assert done.exit_code == (2 if "join" in command else 1)
        assert f"take part in this task as {STAYS}" in " ".join(done.output.split())
    assert (account / "participations.log").read_bytes() == before


def test_an_auditor_reads_a_training_that_began_from_weights(
    trained: Trained, tmp_path: Path
) -> None:
    """It has the ledgers, and not the weights."""
    states = [trained.state(server) for server in SERVERS]
    for state in states:
        assert "sound" in precad("ledger", "verify", state).stdout
    done = precad("report", *states, "--out", tmp_path / "report.html")
    assert done.exit_code == 0, done.stderr


def test_each_owner_has_the_newest_model_it_saw_from_the_tasks_weights_on(
    trained: Trained,
) -> None:
    task, stays, leaves = (
        trained.deployment.task,
        trained.model(STAYS),
        trained.model(LEAVES),
    )
    at_server = load_model(trained.state("server-a") / "model.safetensors", task)
    assert (stays.version, stays.digest) == (ROUNDS, at_server.digest)
    assert stays.theta.tobytes() == at_server.theta.tobytes()
    served = server_statements.read_models(trained.state(STAYS) / "models.log")
    assert (leaves.version, leaves.digest) == (ALLOWED, served[task.digest, ALLOWED])
    theta = START.astype(np.float32)
    assert served[task.digest, 0] == model_digest(
        task.digest, 0, task.model.parameters, theta
    )
    # Without precad the file can be read, and says what it is.
    path = trained.state(STAYS) / "model.safetensors"
    assert (
        load_file(path)["1.bias"].numpy() == stays.weights["1.bias"].astype(np.float32)
    ).all()
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    private = json.loads(metadata["private_training"])
    assert (metadata["task_name"], metadata["version"]) == ("small", str(ROUNDS))
    assert (private["noise_multiplier"], private["rounds"]) == (2.0, ROUNDS)
    assert re.search(r"ε = \d\.\d+, δ = 1e-05.* all 4 rounds", metadata["guarantee"])
    assert [each.stat().st_mode & 0o777 for each in (path, path.parent)] == [
        0o600,
        0o700,
    ]


def test_predict_and_evaluate_take_the_owners_settings(
    trained: Trained, tmp_path: Path
) -> None:
    settings, at_server = (
        trained.settings(STAYS),
        trained.state("server-a") / "model.safetensors",
    )
    module = trained.model("server-a").load_into(logistic(3, 2))
    with torch.no_grad():
        shares = torch.softmax(module(torch.from_numpy(X)), dim=1).numpy()
    np.savez(tmp_path / "new.npz", x=X)
    predict = partial(precad, "predict", tmp_path / "new.npz", "--config", settings)
    rows = list(csv.DictReader(predict().stdout.splitlines()))
    assert [int(row["class"]) for row in rows] == shares.argmax(axis=1).tolist()
    assert float(rows[3]["probability_1"]) == pytest.approx(shares[3, 1], abs=1e-5)
    assert predict("--out", tmp_path / "p.npy").exit_code == 0
    np.testing.assert_allclose(np.load(tmp_path / "p.npy"), shares, atol=1e-6)

    np.savez(tmp_path / "known.npz", x=X, y=Y)
    model = ("--task", settings.with_name("task.toml"), "--model-file", at_server)
    told = document("evaluate", tmp_path / "known.npz", *model)
    right = float((shares.argmax(axis=1) == Y).mean())
    loss = float(-np.log(shares[np.arange(len(Y)), Y]).mean())
    found = (told["records"], told["accuracy"], told["loss"])
    assert found == (len(Y), pytest.approx(right), pytest.approx(loss, rel=1e-4))


FEATURES = 5


class Median(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.zeros(FEATURES))
        self.offset = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.slope + self.offset


def test_owners_train_their_own_model_on_datasets_and_arrays_within_limits(
    deploy: Deploy,
) -> None:
    parameters = [
        {"name": "slope", "shape": [FEATURES]},
        {"name": "offset", "shape": [1]},
    ]
    changes = {"model.architecture": "custom", "model.parameters": parameters}
    deployment = deploy(changes | {"training.rounds": ROUNDS}, linger_s=LINGER_S)
    folder, privacy = deployment.folder, deployment.task.privacy
    x = np.random.default_rng(5).normal(size=(80, FEATURES)).astype(np.float32)
    y = x.sum(axis=1)

    def cost(participations: int) -> object:
        epsilon = record_epsilon(
            participations=participations,
            record_rate=privacy.record_rate,
            noise_multiplier=privacy.noise_multiplier,
            delta=privacy.delta,
        )
        return pytest.approx(epsilon)

    def owner(
        name: str,
        data: object,
        *,
        epsilon_limit: float | None,
        held_out: object = None,
    ) -> DataOwner:
        server_a, server_b = (deployment.addresses[name] for name in SERVERS)
        return DataOwner(
            name,
            data=data,
            model=Median(),
            loss=functional.mse_loss,
            task=folder / "task.toml",
            identity=folder / "keys" / name,
            state=folder / "own" / name,
            server_a=server_a,
            server_b=server_b,
            epsilon_limit=epsilon_limit,
            held_out=held_out,
        )

    told: list[RoundInfo] = []

    def fails(info: RoundInfo) -> None:
        told.append(info)
        raise ZeroDivisionError

    dataset = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    unlimited = owner("ward-00", dataset, epsilon_limit=None, held_out=(x, y))
    limited = owner("ward-01", (x, y), epsilon_limit=LIMIT)
    deployment.start_servers()
    with ThreadPoolExecutor(2) as threads:
        ends = threads.submit(unlimited.run, on_round=fails)
        short = threads.submit(limited.run).result()
        whole = ends.result()
        # Whose limit is used up still gets the final model, while the servers are there.
        late = owner("ward-01", (x, y), epsilon_limit=LIMIT).run()

    assert (late.ended, late.submitted) == ("finished", 0)
    assert late.model == whole.model != short.model
    assert (whole.ended, whole.submitted, whole.counted) == ("finished", ROUNDS, ROUNDS)
    assert (short.ended, short.submitted) == ("budget", ALLOWED)
    assert whole.epsilon == cost(ROUNDS)
    assert short.epsilon <= limited.budget.epsilon() == cost(ALLOWED)
    # A callback that raises each time stops nothing, and isn't silent.
    assert (whole.callback_failures, type(whole.callback_error)) == (
        ROUNDS,
        ZeroDivisionError,
    )
    numbers = list(range(1, ROUNDS + 1))
    assert [(info.number, info.counted) for info in told] == [
        (n, True) for n in numbers
    ]
    assert told[-1].epsilon == cost(ROUNDS)
    assert [row["round"] for row in whole.table()] == numbers
    assert whole.model is not None
    assert whole.model.theta.shape == (FEATURES + 1,)
    with torch.no_grad():
        outputs = whole.load_into(Median())(torch.from_numpy(x))
    assert whole.validation is not None
    loss = float(functional.mse_loss(outputs, torch.from_numpy(y)))
    assert whole.validation.loss == pytest.approx(loss, rel=1e-5)
    assert whole.validation.accuracy is None
    assert short.model is not None
    assert short.model.version == ALLOWED
    assert short.model_file == folder / "own" / "ward-01" / "model.safetensors"
    for name in SERVERS:
        status = deployment.operator(Role(name)).status()
        assert status.model_digest == whole.model.digest.value
        assert dict(status.participations) == {"ward-00": ROUNDS, "ward-01": ALLOWED}
        assert dict(status.rejected_by_client) == {}


def test_readmes_snippet_trains_and_brings_the_model_home(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    section = readme.split("## For data owners: the SDK")[1]
    code = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)[0]
    columns = [{"name": name} for name in ("a", "b", "c")]
    target = {"name": "y", "kind": "categorical", "levels": ["0", "1"]}
    changes = {"data": {"target": target, "columns": columns}, "training.rounds": 3}
    x = np.random.default_rng(2).normal(size=(60, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    there = deploy(changes, 1, {ClientId("ward-3"): (x, y)}, linger_s=LINGER_S)
    rows = [
        ",".join(f"{value:.6g}" for value in row) for row in np.column_stack([x, y])
    ]
    (there.folder / "ward.csv").write_text(
        "\n".join(["a,b,c,y", *rows]), encoding="utf-8"
    )
    there.start_servers()
    for name, role in (("a.example:7301", "server-a"), ("b.example:7302", "server-b")):
        assert name in code
        code = code.replace(name, there.addresses[role])
    monkeypatch.chdir(there.folder)
    names: Document = {"net": logistic(3, 2)}
    exec(code, names)
    result = names["result"]
    assert isinstance(result, Participation)
    assert (result.ended, result.counted) == ("finished", 3)
    assert result.model is not None
    flat = torch.cat([p.detach().flatten() for p in names["net"].parameters()]).numpy()
    assert (flat == result.model.theta.astype(np.float32)).all()
    assert (there.folder / "state" / "model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert printed.count("RoundInfo(number=") == 3
    assert str(result.model) in printed


NAMES, LEAST = ("ward-1", "ward-2"), {"enrolment.min_clients": 2}


def test_of_two_tasks_at_once_an_owner_has_one_account(
    tmp_path: Path, deploy: Deploy
) -> None:
    data = {ClientId(each): (X, Y) for each in NAMES}
    wards, clinics = (
        deploy(
            {"name": name, "training.rounds": n, **LEAST}, data=data, linger_s=LINGER_S
        )
        for name, n in (("wards", 4), ("clinics", 2))
    )
    # The keys and the owners' accounts of the first.
    shutil.rmtree(clinics.folder / "keys")
    (clinics.folder / "keys").symlink_to(wards.folder / "keys")
    for deployment in (wards, clinics):
        for owner in NAMES:
            set_in(deployment, owner, account=str(tmp_path / "accounts" / owner))
        deployment.start_servers()

    def ended(deployment: LocalDeployment) -> list[ServerStatus]:
        """What both servers say once all owners have the final model."""
        assert not any(deployment.wait(NAMES, DEADLINE_S).values())
        return [deployment.operator(Role(name)).status() for name in SERVERS]

    # One waits for its owners all along.
    clinics.start_clients()
    for each in ended(clinics):
        assert (each.task_name, each.version, each.enrolled) == ("clinics", 2, 2)
        assert dict(each.participations) == dict.fromkeys(NAMES, 2)
    said = wards.operator(Role.SERVER_A).status(wait=True, timeout_s=DEADLINE_S)
    assert (said.task_name, said.version, said.enrolled) == ("wards", 0, 0)

    wards.start_clients()
    assert len({each.model_digest for each in ended(wards)}) == 1
    for deployment in (wards, clinics):
        # Each server has a ledger for each task, and an owner one account for all.
        view = document("ledger", "show", deployment.folder / "state" / "server-a")
        assert view["totals"]["participations"] == 2 * deployment.task.training.rounds
    account = document("ledger", "mine", tmp_path / "accounts" / NAMES[0])
    assert sorted(each["versions"] for each in account["tasks"]) == [2, 4]
    assert account["epsilon"] > max(each["epsilon"] for each in account["tasks"])
