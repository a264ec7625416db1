"""The tables of a run; each says where it was measured."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from benchmarks.rounds.case import idle_wait_s
from benchmarks.rounds.document import MEASURES, Document
from benchmarks.rounds.ours.system import CHECKS, PHASES, servers_cpu
from precad.common.ring import WORD_BYTES
from precad.common.terminal import AlignedTable, say

TEXT_WIDTH = 110
NAMES = {
    "crypten": "precad, crypten",
    "proof": "precad, proof",
    "stock_crypten": "stock CrypTen",
    "fed_avg": "plain averaging, float32",
    "flower": "Flower FedAvg, float32",
    "sec_agg_plus": "Flower SecAgg+",
}
PARTS = {
    "open_s": "opening a round (cohort, coin, announcement)",
    "fetch_s": "a client's fetch of the model, all at once",
    "ask_s": "its question to both servers what they have signed for the attempt",
    "prepare_s": "a client's preparation (shares, hashes, proof, signature)",
    "upload_s": "a client's upload, all at once",
    "collect_s": "from the word to the last receipt",
    "finish_s": "from the last receipt to the end, validation begun before",
    "validate_s": "validation and sum, nothing of it begun before the last receipt",
    "release_s": "release: noise, seals, ledgers, noisy shares, model",
}
_NOTHING = "–"
_LINKS = ("local", "slow", "one_line")
_APART = {"validate", "release"}
"""Phases of precad that aren't of its whole round: they are measured in another one."""


def show(out: TextIO, document: Document) -> None:
    """Print all tables."""
    main_key = document["main"]
    main = document["cases"][main_key]
    for table in (
        _validation(main),
        _rounds(main, document["hardware"]["flwr"]),
        *(_parts(main, check) for check in CHECKS),
        _processes(main),
        *(_peers(document, key) for key in [main_key, *document.get("beside", [])]),
        _bytes(main),
        *(_bytes(document["cases"][key]) for key in document.get("beside", [])),
        # Documents of an older version have none.
        *(_padded(found) for found in [document.get("padded_work")] if found),
        *(
            _series(document, name, check)
            for name in document["series"]
            for check in CHECKS
        ),
    ):
        table.show(out)
        say(f"\n{textwrap.fill(_caption(document), TEXT_WIDTH)}\n", out=out)


def as_text(document: Document) -> str:
    """All tables as plain text."""
    out = io.StringIO()
    show(out, document)
    return out.getvalue().rstrip() + "\n"


def _caption(document: Document) -> str:
    facts = document["hardware"]
    link = document["slow_link"]
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']:g} GiB;"
        f" projections: {facts['kernel']}; precad {facts['precad']}; slow link:"
        f" {8e-6 * link['bytes_per_s']:g} Mbit/s and {1e3 * link['delay_s']:g} ms one"
        " way on each line, * calculated"
    )


def _table(title: str, first: str, *columns: str) -> AlignedTable:
    return AlignedTable(first, *(f">{column}" for column in columns), title=title)


def _size(case: Mapping[str, Any]) -> str:
    return f"d = {case['dimension']:,}, n = {case['clients']:,}"


def _walls(
    case: Mapping[str, Any],
    system: str,
    *keys: str,
    links: Sequence[str] = ("local", "slow"),
) -> list[str]:
    """The wall time on each link, of all keys together."""
    shown = []
    for link in links:
        found = case.get(link, {}).get(system)
        mark = "*" if found and found["how"] == "calculated" else ""
        shown.append(
            _seconds(sum(found["wall_s"][key] for key in keys)) + mark
            if found
            else _NOTHING
        )
    return shown


def _seconds(value: float) -> str:
    return f"{value:.3f} s" if value >= 0.1 else f"{1000 * value:.2f} ms"


def _ratio(case: Mapping[str, Any], link: str, check: str, name: str) -> str:
    found = case.get("ratios", {}).get(link, {}).get(check, {})
    return f"{found[name]:.2f}" if name in found else _NOTHING


def _validation(case: Mapping[str, Any]) -> AlignedTable:
    table = _table(
        f"Validated aggregation, {_size(case)}",
        "system",
        *("local", "slow link", "CPU", "speed-up", "in CPU", "slow link"),
    )
    for check in CHECKS:
        for until, phases, of in (
            ("agreed sum", ("validate",), "ours"),
            ("round's end", ("validate", "release"), "all"),
        ):
            table.add(
                f"{NAMES[check]}, to the {until}",
                *_walls(case, check, *(f"{phase}_s" for phase in phases)),
                _seconds(servers_cpu(case["local"][check], phases)),
                _ratio(case, "local", check, f"check_wall_over_{of}"),
                _ratio(case, "local", check, f"check_cpu_over_{of}"),
                _ratio(case, "slow", check, f"check_wall_over_{of}"),
            )
    if "stock_crypten" in case["local"]:
        found = case["local"]["stock_crypten"]
        table.add(
            "stock CrypTen, the check alone",
            *_walls(case, "stock_crypten", "validate_s"),
            _seconds(sum(found["cpu_s"]["validate"].values())),
            *("1",) * 3,
        )
    return table


def _rounds(case: Mapping[str, Any], flower: str | None) -> AlignedTable:
    table = _table(
        f"A whole round, {_size(case)}",
        "system",
        *("local", "slow link", "one line", "CPU servers", "CPU clients"),
        *("ratio", "slow link", "one line"),
    )
    for check in CHECKS:
        found = case["local"][check]
        clients_cpu = sum(found["cpu_s"][phase]["clients"] for phase in PHASES)
        table.add(
            NAMES[check],
            *_walls(case, check, "round_s", links=_LINKS),
            _seconds(servers_cpu(found, PHASES)),
            _seconds(clients_cpu),
            *(_ratio(case, link, check, "round_over_fed_avg") for link in _LINKS),
        )
        waits = [
            (
                _seconds(each["wall_s"]["round_s"] + idle_wait_s(each["wall_s"])) + "*"
                if (each := case.get(link, {}).get(check))
                else _NOTHING
            )
            for link in _LINKS
        ]
        table.add(
            "  with the default wait",
            *waits,
            *("",) * 2,
            *(
                _ratio(case, link, check, "round_and_wait_over_fed_avg")
                for link in _LINKS
            ),
        )
    if "fed_avg" in case["local"]:
        for name in ("fed_avg", "flower"):
            if name not in case["local"]:
                continue
            cpu = case["local"][name]["cpu_s"]["round"]
            table.add(
                NAMES[name],
                *_walls(case, name, "round_s", links=_LINKS),
                *(_seconds(cpu[part]) for part in ("server", "clients")),
                *_over_plain(case, name),
            )
        table.add(*_masked(case, flower))
    return table


def _over_plain(case: Mapping[str, Any], name: str) -> list[str]:
    return [
        (
            f"{case[link][name]['wall_s']['round_s'] / plain['wall_s']['round_s']:.2f}"
            if (plain := case.get(link, {}).get("fed_avg"))
            else _NOTHING
        )
        for link in _LINKS
    ]


def _masked(case: Mapping[str, Any], version: str | None) -> list[str]:
    """Flower's row, or why there are no figures in it."""
    found = case["local"].get("sec_agg_plus")
    if found is None:
        why = "not installed" if version is None else "too few clients"
        return ["Flower, of precad[bench]", why]
    cpu = sum(found["cpu_s"]["round"].values())
    walls = _walls(case, "sec_agg_plus", "round_s", links=_LINKS)
    shown = _over_plain(case, "sec_agg_plus")
    return ["Flower SecAgg+, in memory", *walls, "in all:", _seconds(cpu), *shown]


def _parts(case: Mapping[str, Any], check: str) -> AlignedTable:
    title = f"Parts of a round under {check}, {_size(case)}"
    table = _table(title, "part", "local", "slow link", "CPU, local")
    ours = case["local"][check]
    # Of all processes; a client's preparation is one thread's.
    cpu = {f"{phase}_s": sum(names.values()) for phase, names in ours["cpu_s"].items()}
    cpu["prepare_s"] = ours["wall_s"]["prepare_cpu_s"]
    for key, name in PARTS.items():
        shown = _seconds(cpu[key]) if key in cpu else _NOTHING
        table.add(name, *_walls(case, check, key), shown)
    return table


def _processes(case: Mapping[str, Any]) -> AlignedTable:
    table = _table(
        f"Processes, {_size(case)}",
        "process",
        "CPU of a round",
        "of validation",
        "peak memory",
    )
    for system, found in case["local"].items():
        apart = _APART if system in CHECKS else ()
        for name, peak in found["peak_mib"].items():
            phases = found["cpu_s"]
            table.add(
                f"{NAMES[system]}: {name}",
                _seconds(
                    sum(phases[phase][name] for phase in phases if phase not in apart)
                ),
                (
                    _seconds(phases["validate"][name])
                    if "validate" in phases
                    else _NOTHING
                ),
                f"{peak:.0f} MiB",
            )
    return table


def _peers(document: Document, key: str) -> AlignedTable:
    """A round over its peers', by link and check, and what it costs their processors."""
    case = document["cases"][key]
    table = _table(
        f"A round over its peers', {_size(case)}",
        "system",
        *("round", "over plain", "over Flower", "CPU servers", "CPU owners"),
    )
    links = {"local": "loopback", "slow": "slow link", "one_line": "one slow line"}
    for link, words in links.items():
        for check in CHECKS:
            found = case.get(link, {}).get(check)
            if found:
                table.add(
                    f"{NAMES[check]}, {words}",
                    _seconds(found["wall_s"]["round_s"]),
                    _ratio(case, link, check, "round_over_fed_avg"),
                    _ratio(case, link, check, "round_over_flower"),
                    _seconds(servers_cpu(found, PHASES)),
                    _seconds(sum(found["cpu_s"][each]["clients"] for each in PHASES)),
                )
        for name in ("fed_avg", "flower"):
            found = case.get(link, {}).get(name)
            if found:
                cpu = found["cpu_s"]["round"]
                table.add(
                    f"{NAMES[name]}, {words}",
                    _seconds(found["wall_s"]["round_s"]),
                    *("", ""),
                    _seconds(cpu["server"]),
                    _seconds(cpu["clients"]),
                )
    return table


def _bytes(case: Mapping[str, Any]) -> AlignedTable:
    """Each link's bytes, beside what arithmetic says where the document has that."""
    expected = case.get("expected_bytes", {})
    widths = next((each for each in expected.values() if "cut" in each), None)
    columns = ["payload", "over 8·d·n", "on the wire", "over 8·d·n"]
    if widths is not None:
        bits = (
            f"shares of {widths['share_bits']} and steps of {widths['step_bits']} bits"
        )
        columns += ["whole words", bits]
    table = _table(f"Bytes of a round, {_size(case)}", "link", *columns)
    whole = WORD_BYTES * case["dimension"] * case["clients"]
    for system, found in case["local"].items():
        payload = found["payload_bytes"]
        wire = case.get("slow", {}).get(system, {}).get("wire_bytes", {})
        forms = expected.get(system, {})
        for link in sorted({*payload, *wire}):
            cells = [
                *_counted(payload.get(link), whole),
                *_counted(wire.get(link), whole),
            ]
            if widths is not None:
                calculated = [
                    forms.get(form, {}).get(link) for form in ("whole", "cut")
                ]
                cells += [
                    _NOTHING if each is None else f"{each:,}" for each in calculated
                ]
            table.add(f"{NAMES[system]}: {link}", *cells)
    return table


def _padded(sizes: Sequence[Mapping[str, Any]]) -> AlignedTable:
    table = _table(
        "The padded work of one data owner, logistic regression",
        "size",
        *("records", "padded to", "work", "default wait", "work / wait"),
    )
    for each in sizes:
        table.add(
            f"d = {each['dimension']:,}",
            f"{each['records']:,} at rate {each['record_rate']:g}",
            f"{each['padded_to']:,}",
            _seconds(each["work_s"]),
            _seconds(each["wait_s"]),
            f"{each['work_over_wait']:.2f}",
        )
    return table


def _counted(count: int | None, whole: int) -> Sequence[str]:
    return (_NOTHING, "") if count is None else (f"{count:,}", f"{count / whole:.4f}")


def _series(document: Document, name: str, check: str) -> AlignedTable:
    found = document["series"][name]
    columns = [column for key in MEASURES for column in _columns(key)]
    table = _table(f"precad under {check} by {name}", "size", *columns)
    for key in found["cases"]:
        case = document["cases"][key]
        row: list[str] = []
        for measure, of in MEASURES.items():
            slow = (
                _walls(case, check, measure)[1:]
                if not measure.endswith("cpu_s")
                else []
            )
            row += [_seconds(of(case["local"][check])), *slow]
        table.add(_size(case), *row)
    table.add()
    for label, value in _exponents(found["fits"][check]):
        row = []
        for measure in MEASURES:
            row += [value[measure], *([""] if not measure.endswith("cpu_s") else [])]
        table.add(label, *row)
    return table


def _columns(measure: str) -> list[str]:
    name = {
        "validate_s": "validation",
        "validate_cpu_s": "CPU",
        "round_s": "round",
        "round_cpu_s": "CPU",
    }[measure]
    return [name] if measure.endswith("cpu_s") else [name, "slow link"]


def _exponents(fits: Mapping[str, Any]) -> list[tuple[str, dict[str, str]]]:
    """Rows below a series: the exponent fitted to all sizes, and that of each step."""
    rows = [("exponent", {key: f"{fit['exponent']:.2f}" for key, fit in fits.items()})]
    rows += [
        (f"  {step}", {key: f"{fit['steps'][step]:.2f}" for key, fit in fits.items()})
        for step in next(iter(fits.values()))["steps"]
    ]
    return rows
