"""A real Prometheus scrapes the parts of a training, and its alerts fire when they
should.

Prometheus is a real one of the tests' own, from Debian's package. Where it is missing
these tests are skipped, but under CI they fail.
"""

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.faults.processes import FaultyDeployment
from tests.rig import commands, waiting
from tests.rig.documents import Document
from tests.soak.conftest import Deploy

from precad.cli.local_deployment import free_addresses

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "monitoring" / "dashboard.json"
CASES = ROOT / "tests" / "peers" / "alerts.yml"
PARTS = ("dealer", "server-a", "server-b")


def test_promtool_accepts_the_rules_and_each_fires_and_stays_silent_as_it_should() -> (
    None
):
    for words in (("check", "rules", RULES), ("test", "rules", CASES)):
        command = [commands.installed("prometheus", "promtool"), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


class Watched(NamedTuple):
    deployment: FaultyDeployment
    web: str

    def asked(self, what: str) -> Document | None:
        """An answer of Prometheus' API; None while it starts."""
        try:
            with urllib.request.urlopen(
                f"http://{self.web}/api/v1/{what}", timeout=10
            ) as reply:
                found: Document = json.load(reply)["data"]
                return found
        except OSError:
            return None

    def firing(self) -> set[str]:
        found = self.asked("alerts")
        assert found is not None
        alerts = found["alerts"]
        return {a["labels"]["alertname"] for a in alerts if a["state"] == "firing"}

    def up(self) -> int:
        found = self.asked("targets") or {"activeTargets": []}
        return sum(target["health"] == "up" for target in found["activeTargets"])

    def result(self, expression: str) -> list[Document]:
        """Of an instant query; a wrong one is an error of the API."""
        query = urllib.parse.urlencode({"query": expression})
        answer = self.asked(f"query?{query}")
        assert answer is not None
        found: list[Document] = answer["result"]
        return found

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        waiting.until(ready, lambda: f"{what}\n{self.deployment.explain()}", poll_s=0.2)


@pytest.fixture
def watched(tmp_path: Path, deploy: Deploy) -> Iterator[Watched]:
    deployment = deploy(epsilon_limit=1.5)
    *scraped, web = free_addresses(len(PARTS) + 1)
    for part, address in zip(PARTS, scraped, strict=True):
        path = deployment.folder / f"{part}.toml"
        path.write_text(
            f'{path.read_text(encoding="utf-8")}metrics = "{address}"\n', "utf-8"
        )
    # The rules as they are, but for how long they wait: promtool's tests have that.
    rules = RULES.read_text(encoding="utf-8")
    assert rules.count("for: 30s") == 2
    (tmp_path / "alerts.yml").write_text(rules.replace("for: 30s", "for: 3s"), "utf-8")
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\nrule_files:"
        " [alerts.yml]\nscrape_configs:\n  - {job_name: precad, static_configs:"
        f" [{{targets: {json.dumps(scraped)}}}]}}\n",
        "utf-8",
    )
    program = commands.installed("prometheus", "prometheus")
    command = [program, f"--config.file={tmp_path / 'prometheus.yml'}"]
    command += [
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address={web}",
    ]
    with (tmp_path / "prometheus.log").open("wb") as log:
        prometheus = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deployment.start_all()
        yield Watched(deployment, web)
    finally:
        prometheus.kill()
        prometheus.wait()


def test_parts_are_scraped_alerts_fire_and_end_and_panels_have_answers(
    watched: Watched,
) -> None:
    deployment = watched.deployment
    watched.wait("all three parts are scraped", lambda: watched.up() == len(PARTS))
    watched.wait("a round is done", lambda: deployment.done() >= 1)
    watched.wait("all is well", lambda: not watched.firing())
    deployment.processes["server-b"].kill()
    deployment.processes["server-b"].wait()
    wanted = {"PrecadServerDown", "PrecadPeersLost"}
    watched.wait(f"{sorted(wanted)} fire", lambda: wanted <= watched.firing())
    deployment.restart_the_dead()
    watched.wait("they end", lambda: not wanted & watched.firing())
    near = "PrecadEpsilonNearItsLimit"
    watched.wait(f"{near} fires", lambda: near in watched.firing())
    # The two are scraped at different moments: at one of them it has passed.
    spent, limit = 'precad_epsilon{adversary="one-server"}', "precad_epsilon_limit"
    parts = watched.result(f"{spent} / {limit}")
    [lower, higher] = sorted(float(part["value"][1]) for part in parts)
    assert 0.9 < higher <= 1.0
    assert lower > 0.0
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    # With all that a person may choose there.
    asked = {
        f"{panel['title']}, {target['refId']}": (
            target["expr"].replace("$instance", ".*")
        )
        for panel in panels
        for target in panel.get("targets", ())
    }
    assert len(asked) > 30
    assert [
        panel for panel, question in asked.items() if not watched.result(question)
    ] == []
