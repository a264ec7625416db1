"""What `python -m benchmarks.rounds` computes: checks, exponents, the slow link, resuming."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.rounds.case import Case
from benchmarks.rounds.document import Document, main_case, run, series_of
from benchmarks.rounds.fit import exponent, steps
from benchmarks.rounds.meter import peak_mib, read
from benchmarks.rounds.ours.system import PHASES, task_of
from benchmarks.rounds.padded import padded_work
from benchmarks.rounds.part import Message
from benchmarks.rounds.relay import Line, Link
from benchmarks.rounds.sample import require_right
from benchmarks.rounds.show import as_text
from benchmarks.rounds.vectors import is_sum, vectors

from precad.common.errors import Misconfiguration, PeerViolation

# --- what counts as a right result -------------------------------------------------------------


def test_a_sum_with_noise_is_the_sum_of_all_vectors_and_of_no_others() -> None:
    task = task_of(1000, 10, 1)
    given = vectors(10, 1000, task.bound)
    noise = np.random.default_rng(1).normal(0, task.noise_units, 1000)
    total = np.sum(given, axis=0) + noise
    assert is_sum(total, given, task.noise_units)
    for left_out in given:
        assert not is_sum(total - left_out, given, task.noise_units)
        assert not is_sum(total + left_out, given, task.noise_units)
    one_off = 20 * task.noise_units * (np.arange(1000) == 7)
    assert not is_sum(total + one_off, given, task.noise_units)


@pytest.mark.parametrize("answer", [{"right": False}, {}, {"right": "yes"}])
def test_a_wrong_result_ends_the_run(answer: Message) -> None:
    require_right("fed_avg", {"right": True})
    with pytest.raises(PeerViolation, match="fed_avg gave a wrong result"):
        require_right("fed_avg", answer)


# --- figures -----------------------------------------------------------------------------------


def test_the_exponent_of_a_power_law_is_found_and_a_fixed_cost_shows_in_the_first_step() -> None:
    law = {size: 3.0 * size**1.5 for size in (10, 100, 1000)}
    assert exponent(law) == pytest.approx(1.5)
    assert list(steps(law).values()) == pytest.approx([1.5, 1.5])
    fixed = {size: 100.0 + size for size in (10, 100, 10_000)}
    assert list(steps(fixed)) == ["10 to 100", "100 to 10000"]
    first, last = steps(fixed).values()
    assert first < 0.3
    assert 0.8 < last < 1
    assert exponent({10: 1.0}) is None


def test_processor_time_and_memory_are_the_process_s_own_and_its_children_s() -> None:
    """A parent that sleeps, and a child that computes and holds 64 MiB."""
    child = "x = b'1' * (64 << 20); n = sum(range(3_000_000)); print('done', flush=True); input()"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        alone = os.sysconf("SC_CLK_TCK")
        ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        own = sum(map(int, ticks)) / alone
        found = read({"it": process.pid})
        peak = peak_mib({"it": process.pid})["it"]
        process.communicate(b"\n")
    assert found.cpu_s["it"] > own
    assert peak > 64


# --- the slow link -----------------------------------------------------------------------------


def test_a_line_carries_every_byte_both_ways_and_counts_them() -> None:
    sent = os.urandom(300_000)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(sent)))
        writer.write(b"end")
        await writer.drain()
        writer.close()

    async def talk() -> tuple[bytes, tuple[int, int]]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        line = Line(f"127.0.0.1:{port}", Link(bytes_per_s=1e8, delay_s=0.001))
        host, _, at = (await line.listen()).partition(":")
        reader, writer = await asyncio.open_connection(host, int(at))
        writer.write(sent)
        back = await reader.read(-1)
        writer.close()
        await line.close()
        server.close()
        return back, line.bytes

    back, counted = asyncio.run(talk())
    assert back == sent + b"end"
    assert counted == (len(sent), len(sent) + 3)


# --- a run -------------------------------------------------------------------------------------


def measured(case: Case) -> dict[str, Any]:
    """As `measure` gives it, with times that grow as d·n."""
    size = case.dimension * case.clients * 1e-6
    wall = dict.fromkeys(
        ("collect_s", "finish_s", "open_s", "fetch_s", "prepare_s", "prepare_cpu_s", "upload_s"),
        size / 10,
    ) | {"validate_s": size, "release_s": size / 2, "round_s": 2 * size}
    processes = ("server-a", "server-b", "dealer", "clients")
    precad = {
        "wall_s": wall,
        "cpu_s": {
            phase: dict.fromkeys(processes, size) for phase in (*PHASES, "validate", "release")
        },
        "peak_mib": dict.fromkeys(processes, 100.0),
        "payload_bytes": {"clients to server-b": 8 * case.dimension * case.clients},
        "how": "measured",
    }
    return {
        "dimension": case.dimension,
        "clients": case.clients,
        "local": {"precad": precad},
        "ratios": {},
    }


MAIN = main_case(10_000, 10, 1, slow=False, peers=False)


def play(output: Path | None, done: list[str], *, fails_after: int = 1000) -> Document:
    def stub(case: Case, _say: object) -> dict[str, Any]:
        if len(done) == fails_after:
            raise PeerViolation("broken off")
        done.append(case.key)
        return measured(case)

    def padded() -> list[dict[str, Any]]:
        return padded_work([(2, 2, 10)])

    return run(MAIN, output, lambda _what: None, series=True, measure=stub, padded=padded)


def test_a_run_measures_every_size_once_and_fits_its_series() -> None:
    done: list[str] = []
    document = play(None, done)
    cases = {case.key for each in series_of(MAIN).values() for case in each} | {MAIN.key}
    assert sorted(done) == sorted(cases)
    for name in ("clients", "dimension"):
        assert document["series"][name]["fits"]["round_cpu_s"]["exponent"] == pytest.approx(1)
    text = as_text(document)
    assert text.count(document["hardware"]["cpu"]) == 6 + 2
    assert "The padded work of one data owner" in text
    assert "kernel" in document["hardware"]


def test_a_run_that_was_broken_off_goes_on_and_a_complete_one_begins_anew(tmp_path: Path) -> None:
    output, done = tmp_path / "bench.json", list[str]()
    with pytest.raises(PeerViolation):
        play(output, done, fails_after=3)
    assert not json.loads(output.read_text())["complete"]
    before = list(done)
    document = play(output, done)
    assert len(done) == len(set(done)) == len(document["cases"])
    assert done[: len(before)] == before
    assert json.loads(output.read_text())["complete"]
    again: list[str] = []
    play(output, again)
    assert sorted(again) == sorted(done)


@pytest.mark.parametrize("other", ["no json", "{}", "[1]"])
def test_a_file_that_holds_something_else_is_not_written_over(tmp_path: Path, other: str) -> None:
    output = tmp_path / "notes.txt"
    output.write_text(other)
    with pytest.raises(Misconfiguration, match="holds something else"):
        play(output, [])
    assert output.read_text() == other


# --- what is written about it ------------------------------------------------------------------
