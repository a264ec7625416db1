"""Deployments whose parts are of several releases, each a real process of its own."""

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from examples.demo.local_processes import LocalDeployment
from tests.conftest import small_task
from tests.rig import warm
from tests.rig.documents import Document
from tests.rig.stores import charges, rows
from tests.rig.tasks import logistic
from tests.rig.waiting import until

from precad.aggregator.store import audit_ledger, compare_ledgers, read_training
from precad.cli.forked import Process
from precad.client.account_file import AccountCharge, AccountFile
from precad.common.identifiers import ClientId
from precad.common.model import load_model
from precad.common.task import Task

OWNERS = ("ward-00", "ward-01")
SERVERS = ("server-a", "server-b")
CHECKS = ("crypten", "proof")
FEATURES = 3
# An owner that is started again is waited for: no round goes on without it.
DEADLINES = {
    "enrol": 600.0,
    "collect": 600.0,
    # However slow the machine is, no owner leaves for it.
    "work": 0.0,
    "rejoin": 500.0,
    "peer": 120.0,
    "outage": 600.0,
}


def parties_of(check: str) -> tuple[str, ...]:
    """All that a training with this check of norms has: one owner stands for all."""
    dealer = ("dealer",) if check == "crypten" else ()
    return (*dealer, *SERVERS, OWNERS[0])


def mixed_task(check: str, rounds: int, changes: Document | None = None) -> Task:
    """Of two owners and a logistic model, which `precad join` builds."""
    usual = logistic(FEATURES) | {
        "name": "mixed",
        "validation": check,
        "training.rounds": rounds,
        "enrolment": {"clients": len(OWNERS), "max_expected_records": 10.0},
        "deadlines": DEADLINES,
    }
    return small_task(changes=usual | (changes or {}))


class MixedDeployment(LocalDeployment):
    """``trees`` has, by part, the source tree that it runs from; else it is this one."""

    def __init__(
        self, folder: Path, task: Task, trees: Mapping[str, Path | None]
    ) -> None:
        random = np.random.default_rng(7)
        data = {}
        for name in OWNERS:
            x = random.normal(size=(20, FEATURES)).astype(np.float32)
            data[ClientId(name)] = x, random.integers(0, 2, 20)
        self.trees = dict(trees)
        super().__init__(folder, task, data, linger_s=5.0, popen=self._of_its_tree)
        self.parties = (*self.servers, *OWNERS)

    def start(self, name: str) -> None:
        if name in self.servers:
            self.start_server(name)
        else:
            self.start_client(ClientId(name))

    def start_all(self) -> None:
        for name in self.parties:
            self.start(name)

    def restart(self, name: str, tree: Path | None) -> int:
        """Stop a part, and start it from another tree on the same state.

        Returns the status with which it ended.
        """
        self.processes[name].terminate()
        until(lambda: self.ended(name), self.explain)
        status = self.processes[name].returncode
        self.trees[name] = tree
        self.start(name)
        return int(status)

    def ended(self, name: str) -> bool:
        return self.processes[name].poll() is not None

    def until_ended(self, *names: str) -> dict[str, int]:
        """The statuses of parts that end by themselves."""
        until(lambda: all(map(self.ended, names)), self.explain)
        return {name: self.processes[name].returncode for name in names}

    def done(self) -> int:
        """Versions that both servers have made."""
        query = "SELECT DISTINCT version FROM attempt WHERE state = 'done'"
        return min(len(rows(self.database(server), query)) for server in SERVERS)

    def explain(self) -> str:
        tails = [f"--- {name}\n{self.log_tail(name, 15)}" for name in self.processes]
        return "\n".join(tails)

    def database(self, server: str) -> Path:
        return self.folder / "state" / server / "state.db"

    def enrolled(self) -> set[str]:
        """Owners that server A or B has taken."""
        query = "SELECT client FROM enrolment"
        return {
            name for server in SERVERS for (name,) in rows(self.database(server), query)
        }

    def charged(self, server: str) -> dict[int, set[str]]:
        """Whom a server has charged for each attempt."""
        return charges(self.database(server))

    def charged_by_itself(self, owner: str) -> list[int]:
        """Each version that an owner has charged to itself, as often as it has."""
        path = self.folder / "state" / owner / "participations.log"
        entries = AccountFile(path).new_entries()
        return [entry.version for entry in entries if isinstance(entry, AccountCharge)]

    def _of_its_tree(
        self,
        arguments: list[str],
        *,
        env: Mapping[str, str],
        **options: object,
    ) -> Process:
        tree = self.trees.get(Path(arguments[-1]).stem)
        popen: Callable[..., Process] = warm.forked
        if tree is not None:
            popen = subprocess.Popen
            env = {**env, "PYTHONPATH": str(tree / "src")}
        return popen(arguments, env=env, **options)


def check_trained_right(deployment: MixedDeployment) -> None:
    """All rounds are done, with the same ledgers and models everywhere."""
    urls = [f"sqlite:///{deployment.database(server)}" for server in SERVERS]
    assert compare_ledgers(*urls) == ()
    rounds = list(range(deployment.task.training.rounds))
    models = set()
    for server, url in zip(SERVERS, urls, strict=True):
        assert audit_ledger(url).findings == ()
        assert read_training(url).task.digest == deployment.task.digest
        path = deployment.database(server).with_name("model.safetensors")
        model = load_model(path, deployment.task)
        assert model.version == len(rounds)
        models.add(str(model.digest))
        query = "SELECT attempt, version FROM attempt WHERE state = 'done' ORDER BY 2"
        done: dict[int, int] = dict(rows(deployment.database(server), query))
        # No round is lost, none is made twice, and everybody counted in each.
        assert list(done.values()) == rounds
        charged = deployment.charged(server)
        assert all(charged[attempt] == set(OWNERS) for attempt in done)
    (model_digest,) = models
    for owner in OWNERS:
        assert sorted(deployment.charged_by_itself(owner)) == rounds
        assert f"final model {model_digest}" in deployment.log(owner)
