"""`python -m benchmarks.rounds` measures real processes: every system answers, and rightly.

No time is asserted: the figures are the machine's.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.rounds.__main__ import bench
from benchmarks.rounds.fed_avg import system as fed_avg
from benchmarks.rounds.lines import Straight
from benchmarks.rounds.ours.system import task_of
from benchmarks.rounds.show import as_text
from click.testing import CliRunner

from precad.aggregator.rpc.notices import NOTICE_BYTES, word_room
from precad.common.ring import WORD_BYTES

DIMENSION = 1000
CLIENTS = 2
WHOLE = WORD_BYTES * DIMENSION * CLIENTS
FRAMING = 16_384
"""Headers and keepalives of a round of so few clients, at most."""
NOTICES = 2 * CLIENTS * (NOTICE_BYTES + word_room(bytes(3000)))
"""An attempt's opening and end, with what server A signs then, padded."""
PROCESSES = {
    "precad": {"server-a", "server-b", "dealer", "clients"},
    "fed_avg": {"server", "clients"},
    "stock_crypten": {"party 0", "party 1"},
}
PHASES = {
    "precad": {"collect", "finish", "open", "validate", "release"},
    "fed_avg": {"round"},
    "stock_crypten": {"validate"},
}


pytestmark = pytest.mark.together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def document(folder: Path) -> dict[str, Any]:
    size = ("--dimension", str(DIMENSION), "--clients", str(CLIENTS), "--repeats", "1")
    kept = ("--output", str(folder / "bench.json"), "--json")
    result = CliRunner().invoke(bench, [*size, *kept])
    assert result.exit_code == 0, result.output
    printed = dict(json.loads(result.stdout))
    assert printed == json.loads((folder / "bench.json").read_text())
    return printed


def test_the_document_says_where_and_what_was_measured(
    document: dict[str, Any], folder: Path
) -> None:
    assert document["complete"]
    assert {"cpu", "cores", "memory_gib", "python", "precad", "kernel"} <= set(document["hardware"])
    assert document["slow_link"] == {"bytes_per_s": 12.5e6, "delay_s": 0.02}
    (case,) = document["cases"].values()
    assert (case["dimension"], case["clients"], case["repeats"]) == (DIMENSION, CLIENTS, 1)
    text = (folder / "bench.txt").read_text()
    assert text == as_text(document)
    # With two clients it isn't measured even where it is installed.
    why = "too few clients" if document["hardware"]["flwr"] else "not installed"
    assert re.search(rf"Flower SecAgg\+, .*{why}", text)


@pytest.mark.parametrize("system", PROCESSES)
@pytest.mark.parametrize("link", ["local", "slow"])
def test_every_system_is_measured_on_both_links(
    document: dict[str, Any], link: str, system: str
) -> None:
    (case,) = document["cases"].values()
    found = case[link][system]
    assert set(found["peak_mib"]) == PROCESSES[system]
    assert min(found["peak_mib"].values()) > 10
    assert set(found["cpu_s"]) == PHASES[system]
    for phase in found["cpu_s"].values():
        assert set(phase) == PROCESSES[system]
        assert min(phase.values()) >= 0
        assert max(phase.values()) > 0
    assert min(found["wall_s"].values()) > 0
    # No relay gets between Gloo's two parties.
    calculated = (link, system) == ("slow", "stock_crypten")
    assert found["how"] == ("calculated" if calculated else "measured")
    assert ("wire_bytes" in found) == (link == "slow" and not calculated)


def test_what_every_link_carries_is_counted(document: dict[str, Any]) -> None:
    (case,) = document["cases"].values()
    for system, upload in (("precad", "clients to server-b"), ("fed_avg", "clients to server")):
        found = case["slow"][system]
        assert WHOLE <= found["payload_bytes"][upload] < 1.2 * WHOLE
        assert found["payload_bytes"][upload] < found["wire_bytes"][upload] < WHOLE + FRAMING
        model = upload.replace("clients to ", "").replace("server-b", "server-a") + " to clients"
        assert found["payload_bytes"][model] == WHOLE
        assert WHOLE < found["wire_bytes"][model] < WHOLE + FRAMING + NOTICES
    between = {"server-a to server-b", "server-b to server-a"}
    dealt = {"dealer to server-a", "dealer to server-b"}
    assert between | dealt | {"clients to server-a"} <= set(case["slow"]["precad"]["wire_bytes"])
    check = case["local"]["stock_crypten"]
    assert check["exchanges"] > 2
    assert min(check["payload_bytes"].values()) >= WHOLE


def test_a_model_that_did_not_move_by_the_mean_is_found(tmp_path: Path) -> None:
    bound = task_of(DIMENSION, CLIENTS, 1).bound
    with fed_avg.set_up(DIMENSION, CLIENTS, bound, tmp_path / "run", Straight()) as system:
        assert system.clients.ask(check=True)["right"] is False
        system.play()
        assert system.clients.ask(check=True)["right"] is False
