"""Rounds under both checks of norms, in turn, and stock CrypTen's: writes results/checks.json.

For each size: wall time of a round, CPU of each server in it, CPU and wall time of
validation and sum alone (in a second round that holds them apart:
benchmarks/rounds/ours/clients.py), payload bytes on each link, and the exchanges
between the servers to decide on a batch. Real processes over TLS on this machine,
deployments of both checks side by side, a round of each in turn; some sizes over a link
of 100 Mbit/s and 20 ms between any two parts too, through a relay, and some beside
stock CrypTen, which does nothing else than check, with precad's compiled kernels and
without. Least and median: a busy machine shows in their distance. The tables of
docs/cheating-server.md are written anew with the result; ``--page`` alone writes them.

Each size is kept as soon as it is measured, beside the result, as checks.part: a run
that is broken off goes on there.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rounds.hardware import hardware
from benchmarks.rounds.lines import WIDE_AREA, Lines, Relayed, Straight
from benchmarks.rounds.ours.system import (
    CHECKS,
    PHASES,
    SERVERS,
    Precad,
    set_up,
    task_of,
)
from benchmarks.rounds.sample import Sample, System
from benchmarks.rounds.stock_crypten import system as stock_crypten
from precad.common.kernel import NUMPY
from precad.norm_check.dealing import program

RESULT = Path(__file__).parent / "results" / "checks.json"
LOOPBACK, SLOW = "loopback", "100 Mbit/s, 20 ms"
WITH_STOCK, WITHOUT_C = (
    "beside stock CrypTen",
    "beside stock CrypTen, without the C kernels",
)
"""On loopback too."""
SIZES = {
    LOOPBACK: (
        (10, 650),
        (1, 10**4),
        (10, 10**4),
        (100, 10**4),
        (1, 10**6),
        (10, 10**6),
    ),
    SLOW: ((10, 650), (1, 10**4), (10, 10**4), (100, 10**4), (10, 10**6)),
    WITH_STOCK: ((2, 10**5), (10, 10**5), (10, 10**6)),
    WITHOUT_C: ((2, 10**5), (10, 10**5), (10, 10**6)),
}
WARM_UPS, ROUNDS, FEW_ROUNDS = 1, 5, 3
PROJECTIONS = 40
PAGE = Path(__file__).parents[1] / "docs" / "cheating-server.md"
BEGIN, END = "<!-- benchmarks/checks.py writes this -->", "<!-- to here -->"
Size = tuple[int, int, str]
"""Clients, dimension, and link or peer."""
Measure = Callable[[int, int, str, int], dict[str, Any]]
"""Of a size and rounds."""


def exchanges(check: str, clients: int) -> int:
    """Between the servers, to decide on a batch: each AND and the opening; or coin and words."""
    if check == "proof":
        return 3
    return len(program(clients, clients * (2 * PROJECTIONS + 1))) + 1


def least_and_median(values: list[float]) -> dict[str, float]:
    """Of one figure in all rounds."""
    return {"least": min(values), "median": statistics.median(values)}


def summary(
    samples: list[Sample], system: Precad, check: str, clients: int
) -> dict[str, Any]:
    """Seconds of a round, and what went over each link in one."""
    names = [name for name in system.processes if name in SERVERS]
    return {
        "round_s": least_and_median([each.wall_s["round_s"] for each in samples]),
        "cpu_s": {
            # Of the whole round alone: a sample has one more whose validation is apart.
            name: least_and_median(
                [sum(each.cpu_s[phase][name] for phase in PHASES) for each in samples]
            )
            for name in names
        },
        "validate_s": least_and_median([each.wall_s["validate_s"] for each in samples]),
        "validate_cpu_s": least_and_median(
            [sum(each.cpu_s["validate"][name] for name in names) for each in samples]
        ),
        "exchanges_to_decide": exchanges(check, clients),
        **system.facts(),
    }


def measure(clients: int, dimension: int, how: str, rounds: int) -> dict[str, Any]:
    """Both checks in turn, and stock CrypTen's where it is asked for."""
    total = WARM_UPS + rounds
    with (
        tempfile.TemporaryDirectory(prefix="precad-checks-") as temporary,
        ExitStack() as stack,
    ):
        folder = Path(temporary)
        stack.enter_context(kernels(without_c=how == WITHOUT_C))
        ours: dict[str, Precad] = {}
        for check in CHECKS:
            lines: Lines = Straight()
            if how == SLOW:
                log = folder / f"{check}-relay"
                log.mkdir()
                lines = stack.enter_context(Relayed(WIDE_AREA, log))
            deployed = set_up(
                clients=clients,
                dimension=dimension,
                rounds=total,
                lines=lines,
                folder=folder / check,
                validation=check,
            )
            ours[check] = stack.enter_context(deployed)
        systems: dict[str, System] = {**ours}
        if how in (WITH_STOCK, WITHOUT_C):
            task = task_of(dimension, clients, total)
            stock = stock_crypten.set_up(
                dimension,
                clients,
                task.mechanism.bound,
                task.fractional_bits,
                folder / "stock",
            )
            systems["stock_crypten"] = stack.enter_context(stock)
        samples: dict[str, list[Sample]] = {name: [] for name in systems}
        for turn in range(total):
            for name, system in systems.items():
                sample = system.play()
                if turn >= WARM_UPS:
                    samples[name].append(sample)
        found: dict[str, Any] = {
            check: summary(samples[check], system, check, clients)
            for check, system in ours.items()
        }
        if "stock_crypten" in samples:
            alone = samples["stock_crypten"]
            found["stock_crypten"] = {
                "validate_s": least_and_median(
                    [each.wall_s["validate_s"] for each in alone]
                ),
                "validate_cpu_s": least_and_median(
                    [sum(each.cpu_s["validate"].values()) for each in alone]
                ),
            }
    return {
        "clients": clients,
        "dimension": dimension,
        "link": how,
        "rounds": rounds,
        **found,
    }


@contextmanager
def kernels(*, without_c: bool) -> Iterator[None]:
    """The processes that are started in the block have precad's kernels in C, or not."""
    before = os.environ.get("PRECAD_KERNEL")
    if without_c:
        os.environ["PRECAD_KERNEL"] = NUMPY
    try:
        yield
    finally:
        os.environ.pop("PRECAD_KERNEL", None)
        if before is not None:
            os.environ["PRECAD_KERNEL"] = before


def measure_all(sizes: list[Size], rounds: int, output: Path, measure: Measure) -> None:
    """Each size that the part doesn't have; with the last one the part becomes the result."""
    part = output.with_suffix(".part")
    document: dict[str, Any] = {
        "what": (
            "a round under each check of norms: wall and CPU seconds, payload bytes"
        ),
        "hardware": hardware(),
        "measured": [],
    }
    if part.exists():
        document["measured"] = json.loads(part.read_text(encoding="utf-8"))["measured"]
    for clients, dimension, link in sizes:
        times = rounds if link == LOOPBACK else min(rounds, FEW_ROUNDS)
        asked = {
            "clients": clients,
            "dimension": dimension,
            "link": link,
            "rounds": times,
        }
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
            sum(
                bytes_
                for link, bytes_ in one[check]["payload_bytes"].items()
                if link in _PEERS
            )
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
        if rows:
            found += ["", words, "", *_rounds(rows)]
    found += ["", *_beside_stock(document["measured"])]
    each = [
        f"{between_servers(document, check):,.0f} bytes under `{check}`"
        for check in CHECKS
    ]
    found += [
        "",
        f"Between the servers a submission takes, besides its body, {', '.join(each)}.",
    ]
    if note := document.get("note"):
        found += ["", note]
    found.append("")
    return "\n".join([*found, END])


def _row(*cells: object) -> str:
    # No spaces: a page's words are counted.
    return f"|{'|'.join(map(str, cells))}|"


def _head(*columns: str) -> list[str]:
    return [_row(*columns), _row(*["---"] * len(columns))]


def _rounds(rows: list[dict[str, Any]]) -> list[str]:
    pairs = ("round, s", "CPU s", "to validate and sum, CPU s")
    each = (name for pair in pairs for name in (f"{pair}: crypten", "proof"))
    found = _head("clients", "coordinates", *each)
    ratios = {}
    for one in rows:
        seconds = [one[check]["round_s"]["median"] for check in CHECKS]
        cpu = [
            sum(s["median"] for s in one[check]["cpu_s"].values()) for check in CHECKS
        ]
        validate = [one[check]["validate_cpu_s"]["median"] for check in CHECKS]
        shown = [f"{value:.2f}" for value in (*seconds, *cpu)]
        shown += [f"{value:.3f}" for value in validate]
        found.append(_row(one["clients"], f"{one['dimension']:,}", *shown))
        ratios[one["clients"], one["dimension"]] = seconds[1] / seconds[0]
    best, worst = (
        min(ratios, key=ratios.__getitem__),
        max(ratios, key=ratios.__getitem__),
    )
    said = (
        f"A round under `proof` takes {ratios[best]:.2f} of one under `crypten` at best"
        f" (n = {best[0]}, d = {best[1]:,}), {ratios[worst]:.2f} at worst (n ="
        f" {worst[0]}, d = {worst[1]:,})."
    )
    return [*found, "", said]


def _beside_stock(measured: list[dict[str, Any]]) -> list[str]:
    what = "CPU s to validate and sum, beside stock CrypTen, which validates alone:"
    ours = ("crypten", "proof", "times less: crypten", "proof")
    found = [
        what,
        "",
        *_head("clients", "coordinates", "kernels", "stock CrypTen", *ours),
    ]
    for one in measured:
        if "stock_crypten" in one:
            stock, *own = (
                one[name]["validate_cpu_s"]["median"]
                for name in ("stock_crypten", *CHECKS)
            )
            kernel = "NumPy" if one["link"] == WITHOUT_C else "C"
            shown = [f"{value:.3f}" for value in (stock, *own)]
            shown += [f"{stock / value:.2f}" for value in own]
            found.append(_row(one["clients"], f"{one['dimension']:,}", kernel, *shown))
    return found


def write_page(document: dict[str, Any]) -> None:
    """Put the tables in their place."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    PAGE.write_text(before + tables(document) + after, encoding="utf-8")


def main() -> None:
    """Measure what is asked for, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--clients", type=int, nargs="+", help="of the sizes those with this n"
    )
    parser.add_argument(
        "--dimensions", type=int, nargs="+", help="of the sizes those with this d"
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="of each check, after a first"
    )
    parser.add_argument("--output", type=Path, default=RESULT)
    parser.add_argument(
        "--page", action="store_true", help="write the page's tables alone"
    )
    given = parser.parse_args()
    if not given.page:
        sizes = [
            (n, d, how)
            for how, each in SIZES.items()
            for n, d in each
            if n in (given.clients or [n]) and d in (given.dimensions or [d])
        ]
        measure_all(sizes, given.rounds, given.output, measure)
    if given.output == RESULT:
        write_page(json.loads(RESULT.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
