"""Deployments of real servers in processes of their own, over TLS; whoever asks starts
them."""

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import numpy as np
import pytest
from examples.demo.local_processes import Data, LocalDeployment, Way, straight
from tests.conftest import small_task
from tests.rig.crew import CHANGES
from tests.rig.tasks import logistic
from tests.rig.warm import forked

from precad.cli.local_deployment import to_toml
from precad.common.identifiers import ClientId

SERVERS = ("server-a", "server-b")
Deploy = Callable[..., LocalDeployment]


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    """``deploy({"deadlines.peer": 1.0}, clients=2)``: settings and keys; nothing runs
    yet.

    Whatever the test starts of it is stopped afterwards.
    """
    with deployments(tmp_path) as make:
        yield make


@pytest.fixture(scope="module")
def deploy_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deploy]:
    with deployments(tmp_path_factory.mktemp("module")) as make:
        yield make


@contextmanager
def deployments(folder: Path) -> Iterator[Deploy]:
    """Makes them, in an environment with a proxy; all are stopped afterwards."""
    made: list[LocalDeployment] = []

    def make(
        changes: Mapping[str, object] | None = None,
        clients: int = 2,
        data: Mapping[ClientId, Data] | None = None,
        *,
        linger_s: float = 0,
        way: Way = straight,
        popen: Callable[..., Popen[bytes]] = forked,
        instead: Mapping[str, Sequence[str]] | None = None,
    ) -> LocalDeployment:
        usual = (
            logistic(3)
            | CHANGES
            | {
                "enrolment.clients": clients,
                "deadlines.rejoin": 0.3,
            }
        )
        task, own = (
            small_task(8, {**usual, **(changes or {})}),
            folder / f"deployment-{len(made)}",
        )
        # One record a client: nothing here trains unless it brings data.
        x, y = np.zeros((1, 127), dtype=np.float32), np.zeros(1, dtype=np.int64)
        data = data or {
            ClientId(f"ward-{number:02d}"): (x, y) for number in range(clients)
        }
        made.append(
            LocalDeployment(
                own,
                task,
                data,
                linger_s=linger_s,
                way=way,
                popen=popen,
                instead=instead,
            )
        )
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


def set_in(deployment: LocalDeployment, part: str, **values: object) -> Path:
    """A part's settings file, with these values instead."""
    path = deployment.folder / f"{part}.toml"
    path.write_text(
        to_toml(tomllib.loads(path.read_text("utf-8")) | values), encoding="utf-8"
    )
    return path
