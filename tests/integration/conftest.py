"""Which projections tests of the protocol run on."""

from collections.abc import Iterator

import pytest
from tests.rig import warm

from precad.aggregator.validate import crypten_comparisons
from precad.cli import local_deployment as deployment
from precad.common.kernel import NUMPY, VARIABLE, kernel_in_use

LOADED = crypten_comparisons
"""CrypTen's seconds, before any round of servers in the tests' own process."""


@pytest.fixture(scope="module", params=["the best kernel", "no kernel"])
def either_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything once as this machine does it, and once by NumPy; processes inherit it."""
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
