"""One size, all systems in alternation, on the local link and on the slow one."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.rounds import arithmetic
from benchmarks.rounds.fed_avg import system as fed_avg
from benchmarks.rounds.flower import system as flower
from benchmarks.rounds.flower.installed import version as flower_version
from benchmarks.rounds.lines import SHOWN_S, WIDE_AREA, Lines, Relayed, Straight
from benchmarks.rounds.meter import peak_mib
from benchmarks.rounds.ours import system as ours
from benchmarks.rounds.sample import Sample, System
from benchmarks.rounds.sec_agg_plus import system as sec_agg_plus
from benchmarks.rounds.stock_crypten import system as stock_crypten
from precad.common.task_schema import DeadlineSection

WARM_UPS = 1
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Args:
        dimension: d.
        clients: n.
        repeats: measured rounds of each system on the local link.
        slow_repeats: on the slow link; 0 leaves it out.
        peers: whether the peers are measured too.
        masked: whether Flower's SecAgg+ is among them, if it is installed.
        checks: under which precad is measured.
    """

    dimension: int
    clients: int
    repeats: int
    slow_repeats: int = 1
    peers: bool = True
    masked: bool = True
    checks: tuple[str, ...] = ours.CHECKS

    @property
    def key(self) -> str:
        """Names the case in a document."""
        return f"d={self.dimension} n={self.clients}"


def measure(
    case: Case,
    say: Say,
    begun: Mapping[str, Any] | None = None,
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure the case, one link after another. Returns its part of the document.

    Args:
        case: what.
        say: told what is done next.
        begun: what a run that was broken off has of it; its links stand.
        keep: given what there is of it after each link.

    Raises:
        PrecadError: a part failed, or a result was wrong.
    """
    result: dict[str, Any] = {**asdict(case), "took_s": {}, **(begun or {})}
    for link in ("local", "slow", "one_line") if case.slow_repeats else ("local",):
        if link not in result:
            began = time.monotonic()
            result[link] = _over(link, case, say)
            result["took_s"][link] = round(time.monotonic() - began)
            keep(result)
    if case.peers and "slow" in result:
        local = result["local"]
        result["slow"]["stock_crypten"] = _check_calculated(local["stock_crypten"])
        if "sec_agg_plus" in local:
            result["slow"]["sec_agg_plus"] = _masked_calculated(local["sec_agg_plus"])
    result["expected_bytes"] = _expected(case)
    if case.peers:
        result["ratios"] = _ratios(result)
    return result


def _over(link: str, case: Case, say: Say) -> dict[str, Any]:
    """What each system takes over one kind of link."""
    with tempfile.TemporaryDirectory(prefix="precad-bench-") as temporary:
        folder = Path(temporary)
        if link == "local":
            return _alternate(case, case.repeats, folder / "run", Straight(), say)
        words = {"slow": "slow link", "one_line": "slow link, both servers behind one"}
        if link == "one_line":
            # An averaging server has one line in any case.
            case = replace(case, peers=False, checks=("proof",))
        with Relayed(WIDE_AREA, folder, shared=link == "one_line") as lines:
            return _alternate(
                case,
                case.slow_repeats,
                folder / "run",
                lines,
                lambda what: say(f"{what}, {words[link]}"),
            )


def _expected(case: Case) -> dict[str, Any]:
    """What arithmetic says of each check's links, in both forms."""
    d, n = case.dimension, case.clients
    found: dict[str, Any] = {}
    for check in case.checks:
        task = ours.task_of(d, n, 1, check)
        found[check] = {
            "whole": arithmetic.whole_words(task, n),
            "cut": arithmetic.cut_words(task, n),
            "share_bits": arithmetic.share_bits(task, n),
            "step_bits": arithmetic.step_bits(task, n),
        }
    for peer in ("fed_avg", "flower") if case.peers else ():
        found[peer] = {"whole": arithmetic.plain(d, n)}
    return found


@contextmanager
def _systems(
    case: Case, repeats: int, folder: Path, lines: Lines
) -> Iterator[list[System]]:
    folder.mkdir()
    d, n, rounds = case.dimension, case.clients, WARM_UPS + repeats
    task = ours.task_of(d, n, rounds)
    with ExitStack() as stack:
        systems: list[System] = [
            stack.enter_context(
                ours.set_up(d, n, rounds, folder / check, lines, validation=check)
            )
            for check in case.checks
        ]
        if case.peers:
            averaging = fed_avg.set_up(
                d, n, task.mechanism.bound, folder / "fed_avg", lines
            )
            systems.append(stack.enter_context(averaging))
        if case.peers and flower_version():
            theirs = flower.set_up(d, n, task.mechanism.bound, folder / "flower", lines)
            systems.append(stack.enter_context(theirs))
        if case.peers and isinstance(lines, Straight):
            # Gloo finds its own way between the parties, and SecAgg+ stays in one
            # process: no relay comes in between.
            check = stock_crypten.set_up(
                d,
                n,
                task.mechanism.bound,
                task.fractional_bits,
                folder / "stock_crypten",
            )
            systems.append(stack.enter_context(check))
            if case.masked and flower_version() and n >= sec_agg_plus.LEAST_CLIENTS:
                masked = sec_agg_plus.set_up(
                    d,
                    n,
                    task.mechanism.bound,
                    task.fractional_bits,
                    folder / "sec_agg_plus",
                )
                systems.append(stack.enter_context(masked))
        yield systems


def _alternate(
    case: Case, repeats: int, folder: Path, lines: Lines, say: Say
) -> dict[str, Any]:
    say(f"{case.key}: starting")
    with _systems(case, repeats, folder, lines) as systems:
        samples: dict[str, list[Sample]] = {system.name: [] for system in systems}
        for turn in range(WARM_UPS + repeats):
            for system in systems:
                say(f"{case.key}: {system.name}, {turn} of {WARM_UPS + repeats - 1}")
                samples[system.name].append(system.play())
        return {
            system.name: {
                **_summary(samples[system.name][WARM_UPS:]),
                "peak_mib": peak_mib(system.processes),
                **system.facts(),
                "how": "measured",
            }
            for system in systems
        }


def _summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """Medians, each of its own, and the main walls one by one."""
    wall = {
        key: median(one.wall_s[key] for one in samples) for key in samples[0].wall_s
    }
    cpu = {
        phase: {
            name: median(one.cpu_s[phase][name] for one in samples) for name in names
        }
        for phase, names in samples[0].cpu_s.items()
    }
    each = {
        key: [round(one.wall_s[key], 4) for one in samples]
        for key in ("validate_s", "round_s")
        if key in wall
    }
    typical = min(
        samples,
        key=lambda one: abs(one.wall_s.get("round_s", 0.0) - wall.get("round_s", 0.0)),
    )
    return {
        "wall_s": {key: round(value, 6) for key, value in wall.items()},
        "cpu_s": {
            phase: {name: round(value, 6) for name, value in names.items()}
            for phase, names in cpu.items()
        },
        "each": each,
        **_over_time(typical),
    }


def _over_time(sample: Sample) -> dict[str, Any]:
    """One round's traffic and moments; nothing where nobody counts its bytes."""
    if not sample.lines:
        return {}
    return {
        "over_time": {
            "round_s": round(sample.wall_s["round_s"], 4),
            "stretch_s": SHOWN_S,
            # One line of the document for each link.
            "kilobytes": {
                link: " ".join(f"{count / 1000:.0f}" for count in counts)
                for link, counts in sorted(sample.lines.items())
            },
            "moments": {name: round(at_s, 4) for name, at_s in sample.moments.items()},
        }
    }


def _check_calculated(local: dict[str, Any]) -> dict[str, Any]:
    """Stock CrypTen on the slow link: its local time, and what its exchanges and bytes add."""
    moved = max(local["payload_bytes"].values())
    added = local["exchanges"] * WIDE_AREA.delay_s + moved / WIDE_AREA.bytes_per_s
    wall = {"validate_s": round(local["wall_s"]["validate_s"] + added, 6)}
    return {**local, "wall_s": wall, "each": {}, "how": "calculated"}


def _masked_calculated(local: dict[str, Any]) -> dict[str, Any]:
    """SecAgg+ on the slow link: its four stages go there and back, and their bytes too."""
    delays = 2 * sec_agg_plus.STAGES * WIDE_AREA.delay_s
    added = delays + sum(local["payload_bytes"].values()) / WIDE_AREA.bytes_per_s
    wall = {"round_s": round(local["wall_s"]["round_s"] + added, 6)}
    return {**local, "wall_s": wall, "each": {}, "how": "calculated"}


def idle_wait_s(wall_s: dict[str, float]) -> float:
    """What the padding of the clients' work adds to a round at the default deadline.

    Clients upload ``deadlines.work`` after the announcement, and not before they are
    ready.
    """
    ready_s = wall_s["fetch_s"] + wall_s["ask_s"] + wall_s["prepare_s"]
    return max(0.0, DeadlineSection().work - ready_s)


def _ratios(result: dict[str, Any]) -> dict[str, dict[str, dict[str, float]]]:
    """By link and check: times as fast as stock CrypTen, times as long as averaging."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for link in ("local", "slow", "one_line"):
        for name in ours.CHECKS:
            if name in result.get(link, {}):
                peers = result["local" if link == "local" else "slow"]
                found.setdefault(link, {})[name] = _ratios_of(result[link][name], peers)
    return found


def _ratios_of(precad: dict[str, Any], peers: dict[str, Any]) -> dict[str, float]:
    wall, check = precad["wall_s"], peers["stock_crypten"]
    validate_cpu, all_cpu = (
        ours.servers_cpu(precad, phases)
        for phases in (("validate",), ("validate", "release"))
    )
    check_s, check_cpu = (
        check["wall_s"]["validate_s"],
        sum(check["cpu_s"]["validate"].values()),
    )
    ratios = {
        "check_wall_over_ours": check_s / wall["validate_s"],
        "check_cpu_over_ours": check_cpu / validate_cpu,
        "check_wall_over_all": check_s / (wall["validate_s"] + wall["release_s"]),
        "check_cpu_over_all": check_cpu / all_cpu,
    }
    for name in ("fed_avg", "flower"):
        if name in peers:
            round_s = peers[name]["wall_s"]["round_s"]
            ratios[f"round_over_{name}"] = wall["round_s"] / round_s
            ratios[f"round_and_wait_over_{name}"] = (
                wall["round_s"] + idle_wait_s(wall)
            ) / round_s
    return {name: round(value, 3) for name, value in ratios.items()}
