"""The benchmark of rounds: what it counts, expects and keeps, without measuring."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.rounds.arithmetic import cut_words, share_bits, step_bits, whole_words
from benchmarks.rounds.case import Case
from benchmarks.rounds.document import main_case, run
from benchmarks.rounds.lines import SHOWN_S, Counts, OverTime, Wire
from benchmarks.rounds.ours.system import task_of
from benchmarks.rounds.picture import draw
from benchmarks.rounds.relay import BIN_S
from tests.rig.pages import ROOT

KEPT = json.loads(
    (ROOT / "benchmarks/results/bench-one-size.json").read_text(encoding="utf-8")
)["cases"]["d=1000000 n=10"]


@pytest.mark.parametrize("check", ["crypten", "proof"])
def test_cut_words_are_what_links_carried_but_for_headers(check: str) -> None:
    expected = cut_words(task_of(1_000_000, 10, 1, check), 10)
    measured = KEPT["local"][check]["payload_bytes"]
    bits = step_bits(task_of(1_000_000, 10, 1, check), 10)
    for link, count in expected.items():
        # Of a million normal numbers one round in forty has one that needs a bit more,
        # and so that round's steps: two rounds of the ten that a mean is of may.
        wider = count / bits / 5 if link.endswith("clients") else 0.0
        assert 0 <= measured[link] - count <= 6e-3 * count + wider


@pytest.mark.parametrize("clients", [1, 7, 10])
def test_cut_words_change_shares_and_models_alone(clients: int) -> None:
    task = task_of(1000, clients, 1, "proof")
    whole, cut = whole_words(task, clients), cut_words(task, clients)
    bits = share_bits(task, clients)
    for link, count in whole.items():
        if link.startswith("clients"):
            assert cut[link] == count
        elif link.endswith("clients"):
            models = count // (4 * 1000)
            assert cut[link] == models * math.ceil(step_bits(task, clients) * 1000 / 8)
        else:
            assert count - cut[link] == 8 * 1000 - math.ceil(bits * 1000 / 8)
    assert (
        2 ** (bits - 1)
        <= 2
        * (
            clients * task.mechanism.bound
            + 10 * math.sqrt(2) * task.mechanism.noise_units
        )
        + 3
    )


def test_a_step_is_as_wide_as_the_largest_of_so_many_normal_numbers() -> None:
    task = task_of(100_000, 1, 1, "proof")
    noise = task.mechanism.noise_units
    unit = 2 ** math.floor(math.log2(noise / 8))
    drawn = np.random.default_rng(1).normal(0, math.sqrt(2) * noise, 100_000)
    assert step_bits(task, 1) == round(np.abs(drawn).max() / unit).bit_length() + 1


class Counted:
    """Lines that carried what it is made with."""

    def __init__(self, begin: float) -> None:
        self._first = int(begin / BIN_S) + 1

    def way(self, who: str, address: str) -> str:
        return f"{who} {address}"

    def counts(self) -> Counts:
        return {"clients a:1": (0, 0), "clients b:2": (0, 0)}

    def over_time(self, since: float) -> OverTime:
        del since
        later = self._first + round(2 * SHOWN_S / BIN_S)
        return {
            "clients a:1": ({self._first: 70, self._first + 1: 5}, {later: 9}),
            "clients b:2": ({self._first: 1}, {}),
        }


def test_a_rounds_bytes_are_by_link_and_stretch_from_its_beginning() -> None:
    wire = Wire(Counted(100.0), {"a:1": "server"})
    assert wire.over_time_from(100.0) == {
        "clients to server": [75],
        "server to clients": [0, 0, 9],
    }


def measured(link: str) -> dict[str, Any]:
    return {"link": link}


def test_a_broken_run_goes_on_with_the_next_link(tmp_path: Path) -> None:
    output = tmp_path / "bench.json"
    asked: list[tuple[str, dict[str, Any]]] = []

    def one(case: Case, say: object, begun: dict[str, Any] | None, keep: Any) -> Any:
        del say
        asked.append((case.key, dict(begun or {})))
        result = {**(begun or {}), "local": measured("local")}
        keep(result)
        if case.clients == 100 and begun is None:
            raise KeyboardInterrupt
        return {**result, "slow": measured("slow")}

    def play() -> dict[str, Any]:
        return run(
            main_case(1000, 10, 1, slow=True, peers=False),
            output,
            lambda _: None,
            series=False,
            beside=[(100, 100)],
            measure=one,
            padded=list,
        )

    with pytest.raises(KeyboardInterrupt):
        play()
    document = play()
    local, slow = measured("local"), measured("slow")
    assert asked[2:] == [
        ("d=1000 n=10", {"local": local, "slow": slow}),
        ("d=100 n=100", {"local": local}),
    ]
    assert document["complete"] is True
    assert document["beside"] == ["d=100 n=100"]


def test_the_picture_has_a_panel_for_each_line_that_was_measured(
    tmp_path: Path,
) -> None:
    found = {
        "round_s": 0.2,
        "stretch_s": SHOWN_S,
        "kilobytes": {"clients to server": "0 600 2", "server to clients": "600"},
        "moments": {"the last owner has the model": 0.06},
    }
    case = {"dimension": 1000, "clients": 3, "slow": {"fed_avg": {"over_time": found}}}
    path = tmp_path / "lines.svg"
    draw(path, case)
    text = path.read_text(encoding="utf-8")
    assert "plain averaging, float32: owners and server; a round of 0.20 s" in text
    assert "precad" not in text
