"""Which projections tests of the protocol run on; keys and ports that they share."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from examples.demo import local_processes as deployment
from tests.rig import warm

from precad.aggregator.validate import crypten_comparisons
from precad.common.identity import deployment_keys, mutual_tls
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import ChannelOption
from precad.common.kernel import NUMPY, VARIABLE, kernel_in_use

LOADED = crypten_comparisons
"""CrypTen's seconds, before any round of servers in the tests' own process."""


@pytest.fixture(scope="module", params=["the best kernel", "no kernel"])
def either_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything once as this machine does it, and once by NumPy; processes inherit
    it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "no kernel":
            patch.setenv(VARIABLE, NUMPY)
        kernel_in_use.cache_clear()
        assert request.param == "the best kernel" or kernel_in_use() == NUMPY
        yield
    kernel_in_use.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def _sources_for_processes() -> Iterator[None]:
    """Processes that tests start find precad, installed or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", warm.SOURCES)
        yield


@pytest.fixture(scope="package", autouse=True)
def _forked_parts() -> Iterator[None]:
    """Deployments' parts are forked from one process that has imported everything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deployment, "Popen", warm.forked)
        yield


@pytest.fixture
def rng() -> np.random.Generator:
    """Seeded randomness for test inputs; never for shares or masks."""
    return np.random.default_rng(20240229)


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    deployment_keys.create_local_keys(folder, ["ward-00", "ward-1", "ward-2", "ward-3"])
    return folder


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(identity, handler)``: a real port with mutual TLS; its address."""
    servers: list[grpc.Server] = []

    def start(
        party: Identity,
        *handlers: grpc.GenericRpcHandler,
        options: Sequence[ChannelOption] | None = None,
        compression: grpc.Compression | None = None,
    ) -> str:
        made = grpc.server(
            ThreadPoolExecutor(2),
            [*handlers],
            options=options,
            compression=compression,
        )
        servers.append(made)
        port = mutual_tls.add_port(servers[-1], "127.0.0.1:0", party)
        servers[-1].start()
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None).wait()
