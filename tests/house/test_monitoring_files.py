"""Dashboard, alert rules and docs/metrics.md are about the metrics that the parts really show."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import Metric
from tests.conftest import small_task
from tests.rig.aggregators import session_of
from tests.rig.keys import identity

from precad.aggregator.enrol.register import Register
from precad.aggregator.rpc.server_metrics import Metrics
from precad.aggregator.store import open_store
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.wire.metrics_page import PREFIX
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import DealingService
from precad.dealer.process import collect

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
NAME = re.compile(r"\bprecad_\w+")
Both = tuple[list[Metric], list[Metric]]
OWN = {"up"}
"""Prometheus' own metric of every target."""


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Both]:
    """What a server shows, and what the dealer shows that nobody has called."""
    task = small_task(8, {"privacy.epsilon_limit": 3.0})
    store = open_store("sqlite://", task, Role.SERVER_A)
    session = session_of(Role.SERVER_A, task, store, tmp_path, register=Register(task, store))
    dealer = DealerRole.of(task)
    service = DealingService(task, dealer, identity(Principal.service(Role.DEALER)))
    yield list(Metrics(session).collect()), list(collect(task.name, dealer, service))
    store.close()


def full_name(metric: Metric) -> str:
    """The family's, and a counter's with its ending."""
    return metric.name + ("_total" if metric.type == "counter" else "")


@pytest.fixture
def shown(metrics: Both) -> set[str]:
    return {full_name(metric) for part in metrics for metric in part}


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))


def test_each_metrics_name_is_prometheus_own_and_stands_on_the_page(metrics: Both) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    head = r"^\| (?:a server's|the dealer's) \| says \| names nobody, because \|\n.+\n"
    _, *tables = re.split(head, page, flags=re.MULTILINE)
    for table, part in zip(tables, metrics, strict=True):
        for metric in part:
            assert re.fullmatch(PREFIX + r"[a-z][a-z_]+", metric.name)
            assert {sample.name for sample in metric.samples} <= {full_name(metric)}
            assert metric.documentation.endswith(".")
        rows = [row.strip("|").split(" | ") for row in table.partition("\n\n")[0].splitlines()]
        assert {len([cell for cell in row if cell.strip()]) for row in rows} == {3}
        listed = {name for row in rows for name in NAME.findall(row[0])}
        assert sorted(listed) == sorted(map(full_name, part))


def test_a_dealer_that_nobody_has_called_shows_both_servers_at_zero(metrics: Both) -> None:
    """So that the first call is an increase."""
    halves = next(metric for metric in metrics[1] if full_name(metric) == "precad_halves_total")
    found = [(sample.labels["server"], sample.value) for sample in halves.samples]
    assert found == [("server-a", 0), ("server-b", 0)]


def test_every_rule_is_about_a_metric_that_is_there(shown: set[str]) -> None:
    rules = re.findall(r"expr: (.+)", (MONITORING / "alerts.yml").read_text(encoding="utf-8"))
    assert len(rules) >= 7
    used = {name for rule in rules for name in NAME.findall(rule)}
    assert used - shown == set()


def targets(dashboard: Any) -> list[dict[str, str]]:
    return [target for panel in dashboard["panels"] for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_every_metric_and_no_more(dashboard: Any, shown: set[str]) -> None:
    asked = set()
    for target in targets(dashboard):
        # Names that are neither functions, labels nor within a selector.
        bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby \([^)]*\)", "", target["expr"])
        asked |= set(re.findall(r"[a-zA-Z_]\w*(?!\w*\s*\()", bare)) - {"by"}
    assert asked == shown | OWN


def test_every_panel_shows_the_chosen_prometheus_and_parts(dashboard: Any) -> None:
    chosen = {variable["name"] for variable in dashboard["templating"]["list"]}
    assert chosen == {"datasource", "instance"}
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"
            selected = re.findall(r"\{([^}]*)\}", target["expr"])
            assert selected
            assert all('instance=~"$instance"' in each for each in selected)
            # A number is the present one, and not that of every series there has been meanwhile.
            assert target.get("instant", False) == (panel["type"] == "stat")
