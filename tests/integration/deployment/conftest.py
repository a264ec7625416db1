"""Real servers in processes of their own, over TLS, and light clients in threads of the test.

The deployment is shared by all tests of this folder: its training has rounds enough, and each
test plays as many as it wants. A round that nobody plays stays open for the next test.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.crew import CHANGES
from tests.rig.light_client import LightClient, light_client
from tests.rig.tasks import logistic
from tests.rig.warm import forked

from precad.cli.local_deployment import LocalDeployment
from precad.client.own_account import OwnAccount
from precad.common.identifiers import ClientId
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.common.wire.messages import RoundOpen

TaskMaker = Callable[..., Task]
Act = Callable[[LightClient, RoundOpen], object]

DIMENSION = 256
CLIENTS = 24
COLLECT_S = 600.0
"""Rounds end when all have submitted: none waits for it."""
COUNTED = "counted"


@dataclass(frozen=True, slots=True)
class Played:
    event: RoundOpen
    outcome: Mapping[str, str]
    """For each client ``counted``, or the reason that its notice gave."""


@dataclass(slots=True)
class Running:
    deployment: LocalDeployment
    clients: list[LightClient]
    _last: int = field(default=-1)

    @property
    def task(self) -> Task:
        return self.deployment.task

    def play(self, acts: Mapping[int, Act | RingVector], rest: Act | RingVector) -> Played:
        """Play a round: what the clients with these numbers do, and what the others do.

        A vector stands for an honest submission of it.
        """
        # Most of its time must be left, whatever the machine has to do besides.
        event = self.clients[0].opened(after=self._last, fresh_s=COLLECT_S / 2, timeout_s=COLLECT_S)
        self._last = event.attempt

        def act(number: int) -> None:
            what = acts.get(number, rest)
            client = self.clients[number]
            if isinstance(what, np.ndarray):
                client.submit(event, what)
            else:
                what(client, event)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(act, range(len(self.clients))))
        outcome = {}
        for client in self.clients:
            over = client.over(event.attempt, COLLECT_S)
            assert over.counted == (over.rejection == "")
            outcome[client.servers.client.name] = COUNTED if over.counted else over.rejection
        return Played(event, outcome)


Deploy = Callable[..., LocalDeployment]


@pytest.fixture
def deploy(tmp_path: Path, make_task: TaskMaker) -> Iterator[Deploy]:
    """``deploy({"deadlines.peer": 1.0}, clients=2)``: settings and keys; nothing runs yet.

    Whatever the test starts of it is stopped afterwards.
    """
    with deployments(tmp_path, make_task) as make:
        yield make


@pytest.fixture(scope="module")
def deploy_once(tmp_path_factory: pytest.TempPathFactory, make_task: TaskMaker) -> Iterator[Deploy]:
    with deployments(tmp_path_factory.mktemp("module"), make_task) as make:
        yield make


@contextmanager
def deployments(folder: Path, make_task: TaskMaker) -> Iterator[Deploy]:
    """Makes them, in an environment with a proxy; all are stopped afterwards."""
    made: list[LocalDeployment] = []

    def make(
        changes: Mapping[str, Any] | None = None,
        clients: int = 2,
        data: Mapping[ClientId, tuple[Any, Any]] | None = None,
        **given: Any,
    ) -> LocalDeployment:
        usual = logistic(3) | CHANGES | {"enrolment.clients": clients, "deadlines.rejoin": 0.3}
        task, own = make_task(8, {**usual, **(changes or {})}), folder / f"deployment-{len(made)}"
        how: dict[str, Any] = {"linger_s": 0, "popen": forked, **given}
        made.append(LocalDeployment(own, task, data or records_of(clients), **how))
        return made[-1]

    with pytest.MonkeyPatch.context() as environment:
        # Nobody is to ask it: a proxy for web pages must not lie between the parts.
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            environment.setenv(name, "http://127.0.0.1:9")
        try:
            yield make
        finally:
            for deployment in made:
                deployment.stop()


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory, make_task: TaskMaker) -> Iterator[Running]:
    """A training that goes on for as long as tests play rounds of it."""
    with training(tmp_path_factory.mktemp("running"), make_task) as made:
        yield made


@pytest.fixture(params=["crypten", "proof"])
def by_either_check(
    request: pytest.FixtureRequest, tmp_path: Path, make_task: TaskMaker
) -> Iterator[Running]:
    """``running``, and one whose owners prove their norms."""
    if request.param == "crypten":
        yield request.getfixturevalue("running")
        return
    with training(tmp_path, make_task, request.param) as made:
        yield made


@contextmanager
def training(folder: Path, make_task: TaskMaker, validation: str = "crypten") -> Iterator[Running]:
    """All parts started, and everybody enrolled."""
    task = make_task(
        DIMENSION,
        {
            **(logistic(127) | CHANGES),
            "validation": validation,
            "privacy.client_clip": 32.0,
            "privacy.noise_multiplier": 2.0,
            # η over the denominator q·Σ p·|D| is 1: θ moves by the noisy sum itself.
            "training.learning_rate": CLIENTS * 0.2,
            "training.rounds": 10_000,
            "enrolment.clients": CLIENTS,
            "fractional_bits": 16,
            "deadlines.collect": COLLECT_S,
            "deadlines.rejoin": 0.3,
        },
    )
    with LocalDeployment(folder, task, records_of(CLIENTS), popen=forked) as deployment:
        deployment.start_servers()
        clients = [light_client(deployment, each, COLLECT_S) for each in deployment.clients]
        try:
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(LightClient.join, clients))
            yield Running(deployment, clients)
        finally:
            for client in clients:
                client.close()


@pytest.fixture(scope="session")
def one_round(make_task: TaskMaker) -> Callable[..., LocalDeployment]:
    """``one_round(folder, changes)``: a deployment of two clients and one round; nothing runs."""

    def make(folder: Path, changes: dict[str, Any] | None = None) -> LocalDeployment:
        changes = {
            **logistic(127), "training.rounds": 1, "enrolment.clients": 2, **(changes or {})
        }  # fmt: skip
        return LocalDeployment(folder, make_task(DIMENSION, changes), records_of(2), linger_s=1)

    return make


def limit_of(task: Task, rounds: int) -> float:
    """A limit on ε with room for so many rounds, and no more."""

    def admitted(epsilon: float) -> int:
        account = OwnAccount(task, task.privacy.record_rate, epsilon, None)
        version = 0
        while account.allows(version):
            account.charge(version)
            version += 1
        return version

    candidates = (1.0 + n / 20 for n in range(200))
    return next(epsilon for epsilon in candidates if admitted(epsilon) == rounds)


def records_of(clients: int) -> dict[ClientId, tuple[Any, Any]]:
    """One record a client: nothing here trains."""
    x, y = np.zeros((1, 127), dtype=np.float32), np.zeros(1, dtype=np.int64)
    return {ClientId(f"ward-{number:02d}"): (x, y) for number in range(clients)}
