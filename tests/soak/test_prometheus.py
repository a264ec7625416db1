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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.faults.processes import DEADLINES, FaultyDeployment
from tests.rig import commands, waiting
from tests.rig.documents import Document
from tests.soak.conftest import Deploy

from precad.cli.local_deployment import free_addresses
from precad.common.identifiers import Role
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.party_certificate import Principal

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "monitoring" / "alerts.yml"
DASHBOARD = ROOT / "deploy" / "monitoring" / "dashboard.json"
CASES = sorted((ROOT / "tests" / "peers").glob("alerts*.yml"))
PARTS = ("dealer", "server-a", "server-b")


def test_promtool_accepts_the_rules_and_each_fires_and_stays_silent_as_it_should() -> (
    None
):
    for words in (("check", "rules", RULES), ("test", "rules", *CASES)):
        command = [commands.installed("prometheus", "promtool"), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


HURRY = {
    "for: 30s": "for: 3s",
    "for: 5m": "for: 3s",
    "[15m]) == 0": "[15s]) == 0",
    "offset 15m": "offset 15s",
    "[5m]": "[30s]",
}


class Watched(NamedTuple):
    deployment: FaultyDeployment
    web: str
    scraped: dict[str, str]
    """Where each part's metrics are."""

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
        # Whoever waits asks again.
        alerts = (self.asked("alerts") or {"alerts": []})["alerts"]
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


Watch = Callable[..., Watched]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Starts a Prometheus beside a deployment whose parts haven't begun."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(deployment: FaultyDeployment, *, hurry: bool = True) -> Watched:
        parts = deployment.servers
        *scraped, web = free_addresses(len(parts) + 1)
        for part, address in zip(parts, scraped, strict=True):
            path = deployment.folder / f"{part}.toml"
            settings = path.read_text(encoding="utf-8")
            settings = settings.replace("linger = 600.0", "linger = 5.0")
            path.write_text(f'{settings}metrics = "{address}"\n', "utf-8")
        # The rules as they are; in a hurry minutes are seconds, as promtool's tests
        # have how long they wait.
        rules = RULES.read_text(encoding="utf-8")
        if hurry:
            for slow, quick in HURRY.items():
                assert slow in rules
                rules = rules.replace(slow, quick)
        (tmp_path / "alerts.yml").write_text(rules, "utf-8")
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
            running.append(
                subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            )
        return Watched(deployment, web, dict(zip(parts, scraped, strict=True)))

    yield begin
    for prometheus in running:
        prometheus.kill()
        prometheus.wait()


def test_parts_are_scraped_alerts_fire_and_end_and_panels_have_answers(
    deploy: Deploy, watch: Watch
) -> None:
    # The limit ends every owner within some rounds of a hundred thousand.
    deployment = deploy(epsilon_limit=1.5)
    watched = watch(deployment)
    deployment.start_all()
    early = {"PrecadBudgetEndsEarly"}
    watched.wait("all three parts are scraped", lambda: watched.up() == len(PARTS))
    watched.wait("a round is done", lambda: deployment.done() >= 1)
    watched.wait("nothing else is wrong", lambda: watched.firing() == early)
    deployment.processes["server-b"].kill()
    deployment.processes["server-b"].wait()
    wanted = {"PrecadServerDown", "PrecadPeersLost"}
    watched.wait(f"{sorted(wanted)} fire", lambda: wanted <= watched.firing())
    deployment.restart_the_dead()
    watched.wait("they end", lambda: not wanted & watched.firing())
    # Once the limit has ended them all, nobody counts.
    nobody = "PrecadTooFewCounted"
    watched.wait(f"{nobody} fires", lambda: nobody in watched.firing())
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
    silent = [name for name, question in asked.items() if not watched.result(question)]
    # What holds of a person at one owner, where a task has persons at several.
    assert silent == ["ε of a record, C"]


def renew(deployment: FaultyDeployment, role: Role, days: int) -> None:
    keys = Deployment.open(deployment.folder / "keys")
    keys.renew(Principal.service(role), days=days)


def test_operators_hear_of_what_is_due_and_of_owners_that_stay_away(
    deploy: Deploy, watch: Watch
) -> None:
    deployment = deploy(validation="proof", further={"training.least_counted": 2})
    watched = watch(deployment)
    renew(deployment, Role.SERVER_A, 10)
    renew(deployment, Role.SERVER_B, 2)
    deployment.start_all()
    due = {"PrecadCertificateEndsSoon", "PrecadCertificateEnds"}
    watched.wait("both ends are heard of", lambda: watched.firing() == due)
    for role in (Role.SERVER_A, Role.SERVER_B):
        renew(deployment, role, 365)
    # The new ones are shown by running servers, the other's after its next signature.
    watched.wait("neither is any more", lambda: not watched.firing())
    # One of two owners stays away: three rounds without it, and both servers pause.
    before = deployment.done()
    deployment.processes["ward-1"].kill()
    deployment.processes["ward-1"].wait()
    away = {"PrecadTooFewCounted", "PrecadNeedsOperators", "PrecadRejections"}
    watched.wait(f"{sorted(away)} fire", lambda: away <= watched.firing())
    paused = deployment.done()
    assert paused >= before + 3
    watched.wait("no rounds", lambda: "PrecadNoRounds" in watched.firing())
    assert deployment.done() == paused
    reply = deployment.operator(Role.SERVER_A).status()
    assert f"precad allow few HOST:PORT --server a|b --version {paused}" in reply.error
    deployment.start("ward-1")
    for role in (Role.SERVER_A, Role.SERVER_B):
        deployment.operator(role).allow("few", paused)
    watched.wait("they go on", lambda: deployment.done() >= paused + 4)
    watched.wait(
        "all is well but for the past hour's rejections",
        lambda: watched.firing() <= {"PrecadRejections"},
    )
    # A second process of one owner.
    settings = (deployment.folder / "ward-0.toml").read_text("utf-8")
    assert "state/ward-0" in settings
    twin = settings.replace("state/ward-0", "state/twin")
    (deployment.folder / "twin.toml").write_text(twin, "utf-8")
    deployment._start("twin", "-m", "precad", "join")
    twice = "PrecadIdentityTwice"
    watched.wait(f"{twice} fires", lambda: twice in watched.firing())


def test_a_server_that_stops_at_every_start_and_a_full_disk_are_heard_of(
    deploy: Deploy, watch: Watch
) -> None:
    # Nobody enrols, within a second.
    deadlines = DEADLINES | {"enrol": 1.0}
    deployment = deploy(
        validation="proof",
        further={"deadlines": deadlines, "enrolment.min_clients": 2},
    )
    deployment._instead["server-b"] = ("-m", "tests.rig.full_disk", "serve", "b")
    watched = watch(deployment)
    for name in deployment.servers:
        deployment.start(name)
    wanted = {"PrecadStopped", "PrecadRestarts", "PrecadDiskFull"}

    def fire() -> bool:
        for name in deployment.servers:
            if deployment.processes[name].poll() is not None:
                assert deployment.processes[name].wait() == 1
                deployment.start(name)
        return wanted <= watched.firing()

    watched.wait(f"{sorted(wanted)} fire", fire)


@pytest.mark.timeout(1800)
def test_500_quiet_rounds_and_their_end_fire_nothing(
    deploy: Deploy, watch: Watch
) -> None:
    """By the rules as they are."""
    rounds = 500
    # On a busy machine work may overrun half a second three times in so many rounds.
    deployment = deploy(rounds, further={"deadlines": DEADLINES | {"work": 1.0}})
    watched = watch(deployment, hurry=False)
    deployment.start_all()
    for so_far in range(50, rounds + 1, 50):
        watched.wait(f"{so_far} rounds", partial(_has_done, deployment, so_far))
    deployment.until_done()
    for name in deployment.servers:
        watched.wait(f"{name} ends", partial(_has_ended, deployment, name))
    # Finished parts are down, and no word of it.
    down = "up == 0"
    watched.wait(
        "Prometheus sees that they have ended",
        lambda: len(watched.result(down)) == len(deployment.servers),
    )
    for part in deployment.servers:
        [finished] = watched.result(
            f'precad:finished{{instance="{watched.scraped[part]}"}}'
        )
        assert finished["value"][1] == "1"
    # Not even pending, as it would be within the first 30 s.
    assert watched.result('ALERTS{alertname="PrecadServerDown"}') == []
    assert watched.result('count_over_time(ALERTS{alertstate="firing"}[1h])') == []


def _has_done(deployment: FaultyDeployment, rounds: int) -> bool:
    return deployment.done() >= rounds


def _has_ended(deployment: FaultyDeployment, name: str) -> bool:
    return deployment.processes[name].poll() == 0
