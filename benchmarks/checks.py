"""Whole rounds under both checks of norms, in turn; writes results/checks.json.

For n = 1, 10, 100 clients and d = 10^4, 10^6 coordinates (or as told): wall time of a round, CPU of
each of the three processes, payload bytes on each link, and the exchanges between the servers to
decide on a batch. Real processes over TLS on this machine, deployments of both checks side by side,
a round of each in turn; then the same over a link of 100 Mbit/s and 20 ms between any two parts,
through a relay. Least and median: a busy machine shows in their distance. The tables of
docs/cheating-server.md are written anew with the result; ``--page`` alone writes them.

Each size is kept as soon as it is measured, beside the result, as checks.part: a run that is broken
off goes on there.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.rounds.hardware import hardware
from benchmarks.rounds.lines import WIDE_AREA, Lines, Relayed, Straight
from benchmarks.rounds.ours.system import PHASES, SERVERS, Precad, set_up
from benchmarks.rounds.sample import Sample
from precad.norm_check.dealt_triples import program

RESULT = Path(__file__).parent / "results" / "checks.json"
CHECKS = ("crypten", "proof")
CLIENTS, DIMENSIONS = (1, 10, 100), (10**4, 10**6)
LOOPBACK, SLOW = "loopback", "100 Mbit/s, 20 ms"
SLOW_SIZES = ((1, 10**4), (10, 10**4), (100, 10**4), (1, 10**6), (10, 10**6))
WARM_UPS, ROUNDS, SLOW_ROUNDS = 1, 5, 3
PROJECTIONS = 40
PAGE = Path(__file__).parents[1] / "docs" / "cheating-server.md"
BEGIN, END = "<!-- benchmarks/checks.py writes this -->", "<!-- to here -->"
Size = tuple[int, int, str]
"""Clients, dimension and link."""
Measure = Callable[[int, int, str, int], dict[str, Any]]
"""Of a size and rounds."""


def exchanges(check: str, clients: int) -> int:
    """Between the servers, to decide on a batch: each AND and the opening; or coin and words."""
    if check == "proof":
        return 3
    return len(program(clients, clients * (2 * PROJECTIONS + 1))) + 1


def summary(samples: list[Sample], system: Precad, check: str, clients: int) -> dict[str, Any]:
    """Seconds of a round, and what went over each link in one."""
    walls = [sample.wall_s["round_s"] for sample in samples]
    cpu = {
        # Of the whole round alone: a sample has one more whose validation is apart.
        name: [sum(sample.cpu_s[phase][name] for phase in PHASES) for sample in samples]
        for name in system.processes
        if name in SERVERS
    }
    return {
        "round_s": {"least": min(walls), "median": statistics.median(walls)},
        "cpu_s": {
            name: {"least": min(each), "median": statistics.median(each)}
            for name, each in cpu.items()
        },
        "exchanges_to_decide": exchanges(check, clients),
        **system.facts(),
    }


def measure(clients: int, dimension: int, link: str, rounds: int) -> dict[str, Any]:
    """Both checks in turn."""
    total = WARM_UPS + rounds
    with tempfile.TemporaryDirectory(prefix="precad-checks-") as folder, ExitStack() as stack:
        systems = {}
        for check in CHECKS:
            place = Path(folder) / check
            lines: Lines = Straight()
            if link == SLOW:
                log = Path(folder) / f"{check}-relay"
                log.mkdir()
                lines = stack.enter_context(Relayed(WIDE_AREA, log))
            deployed = set_up(dimension, clients, total, place, lines, validation=check)
            systems[check] = stack.enter_context(deployed)
        samples: dict[str, list[Sample]] = {check: [] for check in CHECKS}
        for turn in range(total):
            for check, system in systems.items():
                sample = system.play()
                if turn >= WARM_UPS:
                    samples[check].append(sample)
        found = {
            check: summary(samples[check], system, check, clients)
            for check, system in systems.items()
        }
    return {"clients": clients, "dimension": dimension, "link": link, "rounds": rounds, **found}


def measure_all(sizes: list[Size], rounds: int, output: Path, measure: Measure) -> None:
    """Each size that the part doesn't have; with the last one the part becomes the result."""
    part = output.with_suffix(".part")
    document: dict[str, Any] = {
        "what": "a round under each check of norms: wall and CPU seconds, payload bytes",
        "hardware": hardware(),
        "measured": [],
    }
    if part.exists():
        document["measured"] = json.loads(part.read_text(encoding="utf-8"))["measured"]
    for clients, dimension, link in sizes:
        times = min(rounds, SLOW_ROUNDS) if link == SLOW else rounds
        asked = {"clients": clients, "dimension": dimension, "link": link, "rounds": times}
        if not any(asked.items() <= found.items() for found in document["measured"]):
            found = measure(clients, dimension, link, times)
            document["measured"].append(found)
            part.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
            print(json.dumps(found), flush=True)
    part.replace(output)


def between_servers(document: dict[str, Any], check: str) -> float:
    """Bytes a submission between the servers besides the bodies: what 90 more submissions added."""
    few, many = (
        next(
            sum(bytes_ for link, bytes_ in one[check]["payload_bytes"].items() if link in _PEERS)
            for one in document["measured"]
            if (one["clients"], one["dimension"], one["link"]) == (n, 10**4, LOOPBACK)
        )
        for n in (10, 100)
    )
    # Where norms are proved no body crosses.
    body = 32 + 8 * 10**4 if check == "crypten" else 0
    return float((many - few) / 90 - body)


_PEERS = ("server-a to server-b", "server-b to server-a")


def tables(document: dict[str, Any]) -> str:
    """What docs/cheating-server.md shows of a result."""
    found = [BEGIN]
    for link, words in (
        (LOOPBACK, "On loopback:"),
        (SLOW, f"Between any two parts {SLOW} one way:"),
    ):
        rows = [one for one in document["measured"] if one["link"] == link]
        if not rows:
            continue
        found += [
            "",
            words,
            "",
            "| clients | coordinates | round, s: crypten | proof | CPU s: crypten | proof |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        ratios = {}
        for one in rows:
            seconds = [one[check]["round_s"]["median"] for check in CHECKS]
            cpu = [sum(s["median"] for s in one[check]["cpu_s"].values()) for check in CHECKS]
            cells = [f"{one['clients']}", f"{one['dimension']:,}"]
            cells += [f"{value:.2f}" for value in (*seconds, *cpu)]
            found.append(f"| {' | '.join(cells)} |")
            ratios[one["clients"], one["dimension"]] = seconds[1] / seconds[0]
        best, worst = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        said = (
            f"A round under `proof` takes {ratios[best]:.2f} of one under `crypten` at best (n = "
            f"{best[0]}, d = {best[1]:,}), {ratios[worst]:.2f} at worst (n = {worst[0]}, d = "
            f"{worst[1]:,})."
        )
        found += ["", said]
    each = [f"{between_servers(document, check):,.0f} bytes under `{check}`" for check in CHECKS]
    found += ["", f"Between the servers a submission takes, besides its body, {', '.join(each)}."]
    if note := document.get("note"):
        found += ["", note]
    found.append("")
    return "\n".join([*found, END])


def write_page(document: dict[str, Any]) -> None:
    """Put the tables in their place."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    PAGE.write_text(before + tables(document) + after, encoding="utf-8")


def main() -> None:
    """Measure what is asked for, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=CLIENTS, help="n")
    parser.add_argument("--dimensions", type=int, nargs="+", default=DIMENSIONS, help="d")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each check, after a first")
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument("--page", action="store_true", help="write the page's tables alone")
    given = parser.parse_args()
    if not given.page:
        sizes = [(n, d, LOOPBACK) for d in given.dimensions for n in given.clients]
        asked = {(n, d) for n, d, _ in sizes}
        sizes += [(n, d, SLOW) for n, d in SLOW_SIZES if (n, d) in asked]
        measure_all(sizes, given.rounds, given.output, measure)
    if given.output == RESULT:
        write_page(json.loads(RESULT.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
