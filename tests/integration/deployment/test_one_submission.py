"""One submission, followed: by its id through every party's log, status and ledger.

A training of real processes with logs as JSON. One owner's update is too long in each
round, and both servers reject it for that.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from examples.demo.local_processes import LocalDeployment
from tests.integration.deployment.conftest import SERVERS, Deploy
from tests.rig import warm
from tests.rig.commands import document, precad
from tests.rig.waiting import DEADLINE_S, until

from precad.cli.operate import facts_of
from precad.common.identifiers import ClientId, Role

ROUNDS = 2
NORTH, SOUTH, WEST = OWNERS = ("north-ward", "south-ward", "west-ward")
TOO_LONG = "norm-exceeded"
PAGE = Path(__file__).parents[3] / "docs/runbooks/incident.md"
Line: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Followed:
    """A training that is over, while its servers still answer."""

    deployment: LocalDeployment
    status: dict[str, list[Line]]
    """By server: what its last answer has as ``submissions``."""

    def lines(self, part: str) -> list[Line]:
        """Without gRPC's own: a forked part's was loaded before it was told to be
        silent."""
        lines = self.deployment.log(part).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def state(self, server: str) -> str:
        return str(self.deployment.folder / "state" / server)

    def sent(self, owner: str) -> dict[tuple[int, int], str]:
        """By version and attempt: the id that the owner's own log has."""
        return {
            (line["version"], line["attempt"]): line["submission"]
            for line in self.lines(owner)
            if line["message"].startswith("round ")
        }


@pytest.fixture(scope="module")
def followed(deploy_once: Deploy) -> Iterator[Followed]:
    rng = np.random.default_rng(11)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(np.int64)
    with deploy_once(
        {"training.rounds": ROUNDS},
        clients=len(OWNERS),
        data={ClientId(name): (x, y) for name in OWNERS},
        linger_s=math.inf,
        popen=warm.forked_with_json_log,
        instead={WEST: ("-m", "tests.rig.owner_beyond_bound")},
    ) as deployment:
        deployment.start_servers()
        deployment.start_clients()
        ended = deployment.wait(OWNERS, DEADLINE_S)
        assert ended == dict.fromkeys(OWNERS, 0), deployment.log_tail(WEST)
        status = {
            role.value: list(
                facts_of(deployment.operator(role).status())["submissions"]
            )
            for role in (Role.SERVER_A, Role.SERVER_B)
        }
        until(
            lambda: deployment.log("dealer").count(" left: ") == len(SERVERS),
            lambda: deployment.log("dealer"),
        )
        deployment.stop()
        yield Followed(deployment, status)


def test_a_rejected_owners_submission_has_one_id_at_every_party(
    followed: Followed,
) -> None:
    for (version, attempt), submission in followed.sent(WEST).items():
        named = f"version {version}, attempt {attempt}"
        (own,) = [
            line
            for line in followed.lines(WEST)
            if line.get("submission") == submission
            and line["message"].startswith("round ")
        ]
        assert (own["owner"], own["version"]) == (WEST, version)
        assert f"rejected ({TOO_LONG})" in own["message"]
        for server in SERVERS:
            (line,) = [
                line
                for line in followed.lines(server)
                if line["message"].startswith(f"{named}: ")
            ]
            assert (line["version"], line["attempt"]) == (version, attempt)
            assert f"{named}: 2 of 3 submissions count (" in line["message"]
            assert f", 1 {TOO_LONG} ({WEST} {submission}); " in line["message"]
    assert len(followed.sent(WEST)) == ROUNDS


def test_the_dealer_names_submissions_and_neither_owners_nor_versions(
    followed: Followed,
) -> None:
    lines = followed.lines("dealer")
    for owner in OWNERS:
        for (_, attempt), submission in followed.sent(owner).items():
            dealt = [line for line in lines if submission in line["message"]]
            assert {line["attempt"] for line in dealt} == {attempt}
            assert all(
                line["message"].startswith(f"attempt {attempt}: 3 submissions dealt to")
                for line in dealt
            )
            assert len(dealt) == len(SERVERS)
    assert not any("version" in line for line in lines)
    text = followed.deployment.log("dealer")
    assert not any(owner in text for owner in OWNERS)


def test_status_and_both_ledgers_have_the_same_ids_and_verdicts(
    followed: Followed,
) -> None:
    expected = [
        {
            "version": version,
            "attempt": attempt,
            "owner": owner,
            "submission": followed.sent(owner)[version, attempt],
            "verdict": TOO_LONG if owner == WEST else "counted",
        }
        for version, attempt in sorted(followed.sent(WEST))
        for owner in OWNERS
    ]
    for server in SERVERS:
        state = followed.state(server)
        assert document("ledger", "submissions", state) == expected
        assert followed.status[server] == expected[-len(OWNERS) :]
        for word, value in expected[-1].items():
            alike = [each for each in expected if each[word] == value]
            found = document("ledger", "submissions", state, f"--{word}", value)
            assert found == alike
        assert precad("ledger", "verify", state).output.startswith("sound: ")


def test_the_incident_page_shows_the_lines_as_they_are(followed: Followed) -> None:
    """Names and digits apart: what the page greps for is what the parts write."""
    (attempt_of, submission), *_ = followed.sent(WEST).items()
    version, attempt = attempt_of
    page = " ".join(PAGE.read_text("utf-8").split())
    shown = [
        f"rejected ({TOO_LONG}); ε ",
        f" spent; version {version}, attempt {attempt}, submission ",
        f"version {version}, attempt {attempt}: 2 of 3 submissions count ({NORTH} ",
        f", 1 {TOO_LONG} ({WEST} ",
        f"attempt {attempt}: 3 submissions dealt to server-a (",
    ]
    told = "".join(followed.deployment.log(part) for part in (WEST, *SERVERS, "dealer"))
    for words in shown:
        assert words in told
        assert words in page
    printed = precad(
        "ledger",
        "submissions",
        followed.state("server-a"),
        "--submission",
        submission,
    ).output
    header, row = [" ".join(line.split()) for line in printed.splitlines()]
    assert row == f"{version} {attempt} {WEST} {submission} {TOO_LONG}"
    found = re.escape(row).replace(submission, "[0-9a-f]{12}")
    assert re.search(f"{header} {found}", page)
