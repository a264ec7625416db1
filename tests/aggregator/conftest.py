"""Two servers with real databases, whose ledgers are sound after every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rig.meeting import SERVERS, Servers
from tests.rig.tasks import task_with

from precad.aggregator.store import audit_ledger


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    made = Servers(task_with({}), tmp_path)
    yield made
    made.close()
    # Whatever was lost and learned: each ledger is a sound chain of its own. (The
    # cohort's third was neither charged nor rejected here: no submissions were.)
    for role in SERVERS:
        found = audit_ledger(f"sqlite:///{tmp_path / role.value / 'state.db'}").findings
        assert [each for each in found if "of a cohort of" not in each.what] == []
