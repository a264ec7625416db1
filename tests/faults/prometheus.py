"""A real Prometheus scrapes both servers of a training, and its alerts fire when they should.

    PYTHONPATH=. python -m tests.faults.prometheus

Needs the programs `prometheus` and `promtool` (Debian's package prometheus); takes three minutes.
Server B is stopped for longer than the rules wait, and the training goes on until a record's ε has
passed 90 % of its limit.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.processes import FaultyDeployment, Forks
from tests.faults.test_crash_matrix import ENDLESS, kill_all

from precad.experiments.local.files import free_addresses

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yml"
SERVERS = ("server-a", "server-b")
DEADLINE_S = 150.0


def main() -> int:
    """0 where all alerts fired that should, and none that shouldn't."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    if missing:
        return 2
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        forks = Forks()
        deployment = FaultyDeployment(folder / "run", forks, ENDLESS, epsilon_limit=3.0)
        *scraped, web = free_addresses(len(SERVERS) + 1)
        for server, address in zip(SERVERS, scraped, strict=True):
            path = deployment.folder / f"{server}.toml"
            text = path.read_text(encoding="utf-8")
            path.write_text(f'{text}metrics = "{address}"\n', encoding="utf-8")
        targets = json.dumps(scraped)
        (folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
            f"rule_files: ['{RULES}']\n"
            f"scrape_configs: [{{job_name: precad, static_configs: [{{targets: {targets}}}]}}]\n"
        )
        prometheus = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address={web}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deployment.start_all()
            deployment.strike(())

            def firing() -> set[str]:
                found = asked(web, "alerts")["alerts"]
                return {a["labels"]["alertname"] for a in found if a["state"] == "firing"}

            def up() -> int:
                return sum(t["health"] == "up" for t in asked(web, "targets")["activeTargets"])

            wait("both servers are scraped", lambda: up() == len(SERVERS))
            assert not firing(), firing()
            deployment.processes["server-b"].kill()
            wanted = {"PrecadServerDown", "PrecadPeersLost"}
            wait(f"{', '.join(sorted(wanted))} fire", lambda: wanted <= firing())
            deployment.restart_the_dead()
            wait("they end", lambda: not wanted & firing())
            wait(
                "PrecadEpsilonNearItsLimit fires",
                lambda: "PrecadEpsilonNearItsLimit" in firing(),
            )
            kill_all(deployment)
        finally:
            prometheus.kill()
            prometheus.wait()
            forks.close()
    return 0


def asked(address: str, what: str) -> Any:
    """An answer of Prometheus' API; empty while it starts."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/{what}", timeout=10) as reply:
            return json.load(reply)["data"]
    except OSError:
        return {"alerts": [], "activeTargets": []}


def wait(what: str, ready: Callable[[], bool]) -> None:
    """Until ``ready``, and say how long it took. Raises AssertionError at the deadline."""
    began = time.monotonic()
    while not ready():
        assert time.monotonic() - began < DEADLINE_S, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
