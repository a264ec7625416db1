"""What a server's metrics say while its PostgreSQL is away: what they can, in one line
of the log."""

import logging
import urllib.request
from pathlib import Path

import pytest
from tests.rig.aggregators import session_of
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity
from tests.rig.postgres import running
from tests.rig.stores import Opener, prepared

from precad.aggregator.enrol.register import Register
from precad.aggregator.rpc.server_metrics import Metrics
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task
from precad.common.wire.metrics_page import FRESH_S, metrics_page


def test_a_database_that_is_away_leaves_a_page_and_one_line(
    tmp_path: Path,
    task: Task,
    opener: Opener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = LeapingClock()
    role = Role.SERVER_A
    with running() as postgres:
        store = opener(postgres.schema(), task=task, role=role)
        session = session_of(
            role,
            task,
            store,
            tmp_path,
            register=Register(task, store),
            identity=identity(Principal.service(role)),
        )
        prepared(store)
        with metrics_page(Metrics(session).collect, "127.0.0.1:0", clock):
            port = caplog.records[-1].getMessage().rpartition(" ")[2]

            def scrape() -> dict[str, str]:
                clock.sleep(2 * FRESH_S)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                    lines = page.read().decode().splitlines()
                return dict(
                    line.rsplit(" ", 1) for line in lines if not line.startswith("#")
                )

            before = scrape()
            postgres.stop()
            caplog.clear()
            away = [scrape(), scrape()]
            logged = [record.getMessage() for record in caplog.records]
            traces = [record.exc_info for record in caplog.records]
            postgres.start()
            after = scrape()
    assert (before["precad_store_up"], before["precad_newest_attempt"]) == (
        "1.0",
        "0.0",
    )
    # Others write to this disk meanwhile.
    for found in (before, after):
        del found["precad_disk_free_ratio"]
    assert before == after
    for found in away:
        assert found["precad_store_up"] == "0.0"
        assert found["precad_rounds_done"] == "0.0"
        assert not any("participations" in name for name in found)
    (line,) = [each for each in logged if "metrics" in each]
    assert "metrics lack what the database has: the database can't be reached" in line
    assert not any(traces)
