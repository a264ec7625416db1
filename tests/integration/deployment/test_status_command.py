"""`precad status` against running servers, once and on a real terminal."""

import json
import re
import sys
from functools import partial

import numpy as np
import pytest
from tests.integration.deployment.conftest import Running
from tests.rig.commands import precad
from tests.rig.pane import terminal

from precad.common.kernel import kernel_in_use

COLUMNS = 44
"""A narrow one."""


status = partial(precad, "status")


def play_with_a_bad_one(running: Running) -> None:
    zero = np.zeros(running.task.dimension, dtype=np.int64)
    bad = zero.copy()
    bad[0] = 2**32
    running.play({3: bad}, zero)


@pytest.mark.parametrize("server", ["a", "b"])
def test_status_is_one_json_document_of_what_the_server_did(running: Running, server: str) -> None:
    play_with_a_bad_one(running)
    address = running.deployment.addresses[f"server-{server}"]
    keys = running.deployment.folder / "keys"
    asked = status(address, "--server", server, "--identity", keys / "operator", "--json")
    assert (asked.exit_code, asked.stderr) == (0, "")
    facts = json.loads(asked.stdout)
    assert (asked.stdout.count("\n"), facts["role"]) == (1, f"server-{server}")
    assert (facts["task"], facts["task_digest"]) == (running.task.name, str(running.task.digest))
    assert (facts["phase"], facts["error"]) == ("training", "")
    assert facts["enrolled"] == len(running.clients)
    assert facts["rounds"] == running.task.training.rounds
    assert 1 <= facts["version"] < facts["rounds"]
    assert len(facts["model_digest"]) == 64
    assert facts["rejected"]["norm-exceeded"] >= 1
    assert facts["participations"]["ward-00"] >= 1
    assert sum(facts["bytes"].values()) > 0
    assert (facts["kernel"], facts["redrawn_coins"], facts["workers"]) == (kernel_in_use(), 0, 0)

    table = status(address, "--server", server, "--identity", keys / "operator")
    assert table.exit_code == 0
    for words in ("task digest", str(running.task.digest), "norm-exceeded", "ward-00", "training"):
        assert words in table.stdout


def test_the_live_screen_follows_the_rounds_in_place(running: Running) -> None:
    play_with_a_bad_one(running)
    address = running.deployment.addresses["server-a"]
    identity = running.deployment.folder / "keys" / "operator"
    watch = ["status", address, "--identity", str(identity), "--watch", "--every", "0.5"]
    with terminal([sys.executable, "-m", "precad", *watch], COLUMNS) as pane:
        first = round_of(pane.wait_for(lambda text: "training: round" in text))
        play_with_a_bad_one(running)
        asked = status(address, "--identity", identity, "--json")
        rejected = json.loads(asked.stdout)["rejected"]
        assert rejected["norm-exceeded"] >= 1
        # As much as there is room for: other tests' rounds are counted too.
        told = "rejected: " + ", ".join(f"{why} {number}" for why, number in rejected.items())
        text = pane.wait_for(lambda text: round_of(text) > first and told[: COLUMNS - 2] in text)
    # Each line once: the screen was drawn over itself, and no line was broken into two.
    assert text.count("server-a, ") == text.count("training: round") == 1
    assert len(text.splitlines()) == 7
    assert "24 owners enrolled" in text
    # Whole, however narrow the terminal is.
    assert text.splitlines()[2] == "━" * min(60, COLUMNS)


def round_of(text: str) -> int:
    found = re.search(r"training: round (\d+) of", text)
    return int(found[1]) if found else -1
