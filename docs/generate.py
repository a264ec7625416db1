"""Write what code and results know into the documents: `PYTHONPATH=src:. python docs/generate.py`.

A page holds a block between ``<!-- generated: NAME -->`` and ``<!-- end -->``; a test
compares each with what its function here gives. The tables of the papers' experiments
are pages of their own beside the results.
"""

import ast
import inspect
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from examples.demo.demo_task import demo_task
from pydantic import BaseModel, Discriminator
from pydantic.fields import FieldInfo
from research.study import EXPERIMENTS, Scale, Table
from research.study.kept import Kept

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.guarantees import AccountantName, guarantees
from precad.aggregator.rpc.limits import (
    AT_ONCE,
    GRACE_S,
    IDLE_S,
    LEAST_RATE,
    LEAST_SLOT_RATE,
    MODEL_GRACE_S,
    MODELS_AT_ONCE,
    MORE_THAN_SHARE,
)
from precad.cli.task_description import meaning, table_of
from precad.client.results import Answered
from precad.common.errors import MAX_TEXT, Rejection
from precad.common.ring import KEY_BYTES
from precad.common.submission import (
    MAX_CERTIFICATE_BYTES,
    MAX_CERTIFICATES,
    MAX_SIGNATURE_BYTES,
)
from precad.common.task import Task
from precad.common.terminal import upper
from precad.common.wire.connections import (
    PER_CALLER,
    PER_OPERATOR,
    RESERVED,
    SILENT,
    SILENT_S,
    STRANGERS,
)
from precad.common.wire.guarded_port import (
    BURST,
    MOST_OPEN,
    PER_S,
    REFUSED,
    REFUSED_S,
    REQUEST_S,
    Call,
)
from precad.common.wire.metrics_page import ASKED_S
from precad.common.wire.metrics_page import AT_ONCE as PAGES_AT_ONCE
from precad.common.wire.serving import MAX_REQUEST_BYTES, SERVER_OPTIONS
from precad.simulation.datasets import load

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAPERS = RESULTS / "papers"
BLOCK = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
TITLES = {
    "precad": "PRECAD",
    "xie": "Xie et al.",
    "liu": "Liu et al.",
    "dp-cert": "DP-CERT",
}


def result(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(headings: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table as Markdown has it."""
    return (
        Table(list(headings), [[str(cell) for cell in row] for row in rows]).markdown()
        + "\n"
    )


def paper_of(name: str) -> str:
    """The page on which an experiment's table stands."""
    first = name.partition("-")[0]
    return {"dpcert": "dp-cert", "guarantees": "liu"}.get(first, first)


def papers_page(paper: str, scales: Iterable[Scale] = tuple(Scale)) -> str:
    """Return every table and picture of one paper's experiments, from the committed results."""
    parts = [
        (
            f"# {TITLES[paper]}: the measured tables\n\n"
            f"Written by `docs/generate.py` from the results in this folder; "
            f"[docs/papers/{paper}.md](../../../docs/papers/{paper}.md) says what they mean.\n"
        )
    ]
    for path in sorted(PAPERS.glob("*.json")):
        name, _, size = path.stem.rpartition("-")
        if paper_of(name) != paper or Scale(size) not in scales:
            continue
        one, scale = EXPERIMENTS[name], Scale(size)
        results = Kept(PAPERS, name, scale).of(one.all_cells(scale))
        parts.append(
            f"## {one.figure}: {name}, {size} scale\n\nThe paper's claim: {one.claim}\n\n"
            f"{one.table(results).markdown()}\n\n"
            f"![{one.figure}, {name}, {size} scale]({path.stem}.png)\n"
        )
    return "\n".join(parts)


def minutes() -> str:
    """Return the page of all small results: their data, cells, and one process's minutes."""
    rows = []
    for path in sorted(PAPERS.glob("*-small.json")):
        name = path.stem.removesuffix("-small")
        every = EXPERIMENTS[name].all_cells(Scale.SMALL)
        results = Kept(PAPERS, name, Scale.SMALL).of(every)
        took = sum(each.seconds for each in results) / 60
        data = ", ".join(dict.fromkeys(each.get("data", "none") for each in every))
        cells = (
            f"{len(results)} of {len(every)}"
            if len(results) < len(every)
            else len(every)
        )
        rows.append(
            [f"`{name}`", data, cells, f"{took:.0f}" if took >= 1 else "under 1"]
        )
    return (
        "# Minutes at the small scale\n\nOf one process, on one of two cores that other work used "
        "too. DP-CERT's were measured after `dpcert-table2` in one folder, whose models they take "
        "up; those on airplanes and birds with older versions. The results name processor and "
        "versions.\n\n" + table(["experiment", "data", "cells", "minutes"], rows)
    )


def demo_guarantees() -> str:
    """What the demo's task guarantees, by the exact accountant."""
    values = demo_task(load("digits"), "logistic", clients=10)
    exact: dict[str, dict[Adversary, float]] = {}
    for check in ("crypten", "proof"):
        task = Task.parse({**values, "validation": check})
        stated = guarantees(
            Run.of(task), task.privacy.delta, accountants=(AccountantName.EXACT,)
        )
        exact[check] = {each.adversary: each.epsilon for each in stated}
    found, proof = exact["crypten"], exact["proof"]
    return table(
        ["who looks", "what is protected", "ε in the demo (δ = 1e-5)"],
        [
            [
                "a curious server with any other owners",
                "a record of an honest owner",
                upper(found[Adversary.ONE_SERVER], 3),
            ],
            [
                'a malicious server with them (`validation = "proof"`)',
                "the same, at the cap of its rounds",
                upper(proof[Adversary.ONE_SERVER], 3),
            ],
            [
                "whoever sees the models, both servers honest",
                "a record of an honest owner",
                upper(found[Adversary.CLIENTS_ONLY], 3),
            ],
            [
                "whoever sees the models, both servers honest",
                "that an owner takes part",
                f"{upper(found[Adversary.CLIENT_LEVEL])}: bounds nothing here",
            ],
        ],
    )


def limits() -> str:
    """What a server takes of one caller, and what happens to the rest."""
    options = dict(SERVER_OPTIONS)
    exhausted, closed = "`RESOURCE_EXHAUSTED`", "the oldest is closed"
    certificates = f"{MAX_CERTIFICATES} of {MAX_CERTIFICATE_BYTES:,} bytes"
    rows: list[tuple[str, str, str]] = [
        (
            "one message",
            f"{MAX_REQUEST_BYTES // 1024} KiB",
            f"{exhausted}, before it is parsed",
        ),
        (
            "a share",
            (
                f"the task's length: {KEY_BYTES} bytes for A, 8·d for B; under `proof` "
                f"{KEY_BYTES} bytes for the seed holder, 8·d and the proof for the other"
            ),
            "`malformed`, at the header or at the first byte too many",
        ),
        (
            "a header's signature, certificates",
            f"{MAX_SIGNATURE_BYTES} bytes; {certificates}",
            "`malformed`, before they are parsed",
        ),
        (
            "an upload's next piece",
            f"{IDLE_S:.0f} s",
            "`truncated`; it may be sent again",
        ),
        ("a whole upload", "`deadlines.collect`", "`truncated`; it may be sent again"),
        (
            "a whole model, as its owner waits for it",
            f"`deadlines.collect`, or {IDLE_S:.0f} s where that is shorter",
            "the call ends",
        ),
        (
            "bodies read at once; models fetched at once",
            (
                f"{AT_ONCE}; {MODELS_AT_ONCE}. A client {GRACE_S:g} s, or of a model "
                f"{MODEL_GRACE_S:g} s shared with all that wait, slower than "
                f"{LEAST_RATE / AT_ONCE / 1e6:.0f}; {LEAST_RATE / MODELS_AT_ONCE / 1e6:.0f} MB a "
                "second isn't counted; on a line that was seen full, slower than"
                f" {MORE_THAN_SHARE:g} times everybody's share of it, and"
                f" {LEAST_SLOT_RATE / 1e6:.0f} MB, until that leaves it empty"
            ),
            "others wait for their turn",
        ),
        (
            "open calls of one caller, over all its connections",
            (
                f"{MOST_OPEN[Call.WATCH]} watches, {MOST_OPEN[Call.SUBMIT]} uploads, "
                f"{MOST_OPEN[Call.FETCH]} model fetches, "
                f"{MOST_OPEN[Call.CLAIM]} claim whose account is computed"
            ),
            f"{exhausted}; the SDK comes back later",
        ),
        (
            "calls begun by one caller, served or refused, whatever the method",
            f"{BURST} at once, then {PER_S:g} a second",
            f"{exhausted} after {REFUSED_S:g} s; {REFUSED} beyond, its connection is closed",
        ),
        (
            "calls of one caller whose message isn't whole",
            f"{MOST_OPEN[Call.MESSAGE]}, for {REQUEST_S:g} s",
            f"{exhausted}, `DEADLINE_EXCEEDED`",
        ),
        (
            "calls on one connection",
            str(options["grpc.max_concurrent_streams"]),
            "they wait at the caller",
        ),
        (
            "connections of one caller",
            f"{PER_CALLER}; {PER_OPERATOR} of the operator",
            closed,
        ),
        (
            "a connection without a call",
            (
                f"{SILENT_S:.0f} s after it begins, "
                f"{options['grpc.max_connection_idle_ms'] // 1000} s between calls; "
                f"{SILENT} such connections at once"
            ),
            "it, or the oldest, is closed",
        ),
        (
            "connections altogether",
            (
                f"two a client and {STRANGERS:,}, less where the system allows few open files; "
                f"{RESERVED} of them, half where there are few, aren't for clients"
            ),
            "dropped before a byte is read; the newest clients' are closed",
        ),
        (
            "connections to the metrics' port",
            f"{PAGES_AT_ONCE}, each for {ASKED_S:g} s until it has asked",
            closed,
        ),
        ("a word of a proof's body", "below p", "`malformed`, as it arrives"),
        (
            "a compressed message",
            "none is taken",
            "`UNIMPLEMENTED`, nothing is inflated",
        ),
        (
            "a TLS handshake",
            f"{options['grpc.server_handshake_timeout_ms'] // 1000} s",
            "the connection is closed",
        ),
        ("an error's text", f"{MAX_TEXT:,} characters, 200 of a quoted value", "cut"),
        (
            "a message between the servers",
            "what the task's largest opening takes",
            "the link ends",
        ),
        (
            "the dealer's answer",
            "the words, or the submissions, that were asked for, once each",
            "the link ends",
        ),
        (
            "a request to the dealer",
            "clients and comparisons of the task",
            "`INVALID_ARGUMENT`",
        ),
        (
            "squares on one of a server's streams",
            "the task's clients",
            "`INVALID_ARGUMENT`",
        ),
        (
            "squares computed at once",
            "as many as the dealer has cores",
            "others wait for their turn",
        ),
    ]
    return table(["what", "limit", "beyond it"], rows)


def releases() -> str:
    """What each release speaks and keeps, newest first, and what has changed since."""
    path = ROOT / "common" / "releases.toml"
    listed = tomllib.loads(path.read_text(encoding="utf-8"))
    rows = [*listed["release"]]
    if "next" in listed:
        rows.insert(0, {"version": "since then", "date": "", **listed["next"]})
    names = list(rows[0]["formats"])
    return table(
        ["release", "date", "wire", "schema", *names],
        [
            [
                each["version"],
                each["date"],
                each["wire"],
                each["schema"],
                *(each["formats"].get(name, "") for name in names),
            ]
            for each in rows
        ],
    )


def reasons() -> str:
    """Why a submission doesn't count, from the code's own words."""
    (defined,) = ast.parse(inspect.getsource(Rejection)).body
    rows: list[tuple[str, str]] = []
    match defined:
        case ast.ClassDef(body=body):
            for named, said in itertools.pairwise(body):
                match named, said:
                    case (
                        ast.Assign(value=ast.Constant(value=str(value))),
                        ast.Expr(value=ast.Constant(value=str(words))),
                    ):
                        rows.append((f"`{value}`", " ".join(words.split())))
    return table(["reason", "when"], rows)


def three_ways() -> str:
    """Accuracies of one trusted server, precad and local DP."""
    rows = []
    measured = result("pays_off")
    for data, name in (("digits", "digits"), ("mnist", "MNIST")):
        ways = measured[data]["ways"]
        sizes = dict.fromkeys((way["owners"], way["records_each"]) for way in ways)
        for owners, records in sorted(sizes):
            shares = {
                w["noise_by"]: w["accuracy"] for w in ways if w["owners"] == owners
            }
            cells = [
                f"{100 * shares[by]:.1f} %" if by in shares else "" for by in THREE
            ]
            rows.append([name, f"{owners:,} × {records:,}", *cells])
    return table(
        ["data", "owners × records", "one trusted server", "precad", "local DP"], rows
    )


THREE = ("one", "two", "local")


def units() -> str:
    """Return accuracy with persons protected beside records protected, at each ε."""
    rows: dict[str, list[str]] = {}
    for row in result("units")["rows"]:
        person = row["person"]
        accuracies = (person["accuracy"], row["record"]["accuracy"])
        percents = "/".join(f"{100 * share:.1f}" for share in accuracies)
        cost = row["persons_epsilon_at_record_level"]
        start = [row["records_a_person"], f"{person['units']:,}"]
        cells = rows.setdefault(row["records_a_person"], start)
        cells.append(f"{percents}; {'none' if cost is None else upper(cost, 3)}")
    names = ["records each", "persons", "ε = 1", "ε = 3", "ε = 8"]
    return table(names, list(rows.values()))


def balance() -> str:
    """Return recall and specificity with --balance and without, at each ε."""
    rows = []
    for name, of_table in result("balance")["tables"].items():
        for balanced in (False, True):
            cells = [
                f"{100 * each['recall']:.0f}/{100 * each['specificity']:.0f}"
                for each in of_table["results"]
                if each["balanced"] is balanced
            ]
            share = f"{100 * of_table['rare_share']:.0f} %"
            rows.append([name, share, "yes" if balanced else "no", *cells])
    names = ["table", "rare", "`--balance`", "ε = 1", "ε = 3", "ε = 8", "not private"]
    return table(names, rows)


def whole_owners() -> str:
    """Return accuracy with whole owners protected, beside Flower's server-side clipping."""
    measured = result("whole_owners")

    def mean(trainings: list[dict[str, float]]) -> str:
        shares = [100 * each["accuracy"] for each in trainings]
        return f"{sum(shares) / len(shares):.1f} %"

    rows = [
        [
            f"{row['epsilon']:g}",
            f"{row['noise_multiplier']:g}",
            mean(row["precad"]),
            mean(row["flower"]),
            f"{100 * measured['without_noise']['accuracy']:.1f} %",
        ]
        for row in measured["rows"]
    ]
    names = ["ε", "σ", "precad", "Flower", "without noise"]
    return table(names, rows)


def default_settings() -> str:
    """How far what `task new` writes stays below the best of the grid around it."""
    measured = result("default_settings")
    rows = []
    near = 0
    only_steps = sum(row["case"]["steps"] for row in measured["cases"].values())
    for name, row in measured["cases"].items():
        case, default, best = row["case"], row["default"], row["best"]
        near += best["score"] - default["score"] <= NEAR
        few = [each["score"] for each in row["grid"] if each["client_rate"] < 1]
        cost = row["round"]
        step = best["learning_rate"] / default["learning_rate"]
        at = f"p = {best['record_rate']:g}, C = {best['client_clip']:.2g}, {step:g}·η"
        rows.append(
            [
                f"{name}; {case['records']}",
                f"{row['dimension']:,}",
                f"{default['score']:.1f}",
                f"{best['score']:.1f} ({at})" if best != default else "the same",
                f"{max(few):.1f}" if few else "–",
                f"{cost['seconds']:g} s, {cost['upload_mb']:g} MB",
            ]
        )
    names = ["task", "d", "as written", "best", "best with 20 owners", "a round"]
    return (
        f"Of {len(rows)} whole tasks that nobody tuned {near} are within {NEAR:g} points of the "
        f"best of a grid of q, p, C and η, of {only_steps} large ones of η alone "
        "(`benchmarks/default_settings.py`; accuracy, the area "
        "under the ROC curve where one class is rare, or R²; the mean over two seeds, at the same "
        "ε; time and bytes of a round by the estimate of `task new`):\n\n"
        + table(names, rows)
    )


NEAR = 2.0


def clip_and_attackers() -> str:
    """What ten bad owners of 1,000 do, by p and C."""
    measured = result("clip_and_attackers")
    by_setting: dict[tuple[float, float], list[dict[str, Any]]] = {}
    for run in measured["runs"]:
        by_setting.setdefault((run["record_rate"], run["client_clip"]), []).append(run)
    rows = []
    for (rate, clip), runs in by_setting.items():
        planned = ", with a warning" if runs[0]["warned"] else ", as planned"
        cells = (f"{100 * run['accuracy']:.1f} %" for run in runs)
        rows.append([f"{rate:g}", f"{clip:g}·R{planned}", f"{clip / rate:g}", *cells])
    return (
        f"Of {measured['owners']:,} owners of one record of digits each, ten send the cohort's "
        "mean backwards, as long as C allows (`benchmarks/clip_and_attackers.py`, of what "
        "`precad task new task.toml --records 1000x1 --epsilon 3` writes):\n\n"
        + table(
            ["p", "C", "a bad owner's weight", "accuracy without them", "with them"],
            rows,
        )
    )


def install_sizes() -> str:
    """MB on disk of each extra."""
    measured = result("install")["pythons"]["3.11.2"]
    names = {
        "dealer": "none, `dealer`",
        **{
            each: f"`{each}`"
            for each in ("client", "server", "plan", "simulation", "demo")
        },
        "client beside torch": "`client`, beside torch, NumPy and SciPy",
    }
    rows = [
        (
            shown,
            f"{measured[name]['mb']:,.0f}",
            f"{measured[name]['of_it_compiled_by_pip']:.0f}",
            measured[name]["distributions"],
        )
        for name, shown in names.items()
    ]
    return table(["extra", "MB", "of it modules compiled by pip", "packages"], rows)


TAKES = {float: "number", int: "whole number", str: "text", bool: "true or false"}
BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
LENGTHS = {"min_length": "at least", "max_length": "at most"}


def task_reference() -> str:
    """Every field of a task file, table by table."""
    parts = []
    known: dict[type[BaseModel], str] = {}
    for section, model in task_tables(Task, ""):
        title = f"`[{section}]`" if section else "At the top"
        if known.setdefault(model, title) != title:
            parts.append(f"## {title}\n\nAs {known[model]}.\n")
            continue
        rows = []
        for name, field in model.model_fields.items():
            if (
                table_of(field.annotation) is None
                or "tuple[" in str(field.annotation)
                or or_number(field)
            ):
                default = (
                    "required"
                    if field.is_required()
                    else f"`{plain(field.get_default())}`"
                )
                means = meaning(field).replace("|", "\\|")
                rows.append([f"`{name}`", takes(field), default, means])
        parts.append(
            f"## {title}\n\n{table(['field', 'takes', 'without it', 'means'], rows)}"
        )
    return "\n".join(parts)


def task_tables(
    model: type[BaseModel], section: str
) -> Iterator[tuple[str, type[BaseModel]]]:
    """A table of the file and those in it, by their names there."""
    yield section, model
    for name, field in model.model_fields.items():
        if inner := table_of(field.annotation):
            yield from task_tables(inner, f"{section}.{name}".lstrip("."))


def or_number(field: FieldInfo) -> bool:
    """Whether a field is a table or, more simply, one number."""
    return any(isinstance(each, Discriminator) for each in field.metadata)


def takes(field: FieldInfo) -> str:
    """What a field takes, in words."""
    if or_number(field):
        return "number, above 0; or a table"
    annotation, args = field.annotation, get_args(field.annotation)
    if "dict[" in str(annotation):
        return "table of texts"
    if args and args[-1] is type(None) and get_origin(args[0]) is Literal:
        annotation, args = args[0], get_args(args[0])
    optional = get_args(args[0])[:1] if args and args[-1] is type(None) else ()
    if optional and get_origin(optional[0]) is tuple:
        annotation, args = optional[0], get_args(optional[0])
    bounds = [str(each) for each in field.metadata]
    if get_origin(annotation) is tuple:
        of = get_args(args[0])[0] if get_origin(args[0]) is Annotated else args[0]
        rows = {str: "list of texts", float: "list of numbers"}.get(
            of, "list of whole numbers"
        )
        kind = "list of tables" if table_of(annotation) else rows
    elif annotation in TAKES:
        kind = TAKES[annotation]
    elif all(isinstance(each, str) for each in args):
        kind = " or ".join(f'`"{each}"`' for each in args)
    else:
        inner = next(each for each in args if each is not type(None))
        kind = TAKES[get_args(inner)[0] if get_args(inner) else inner]
        bounds += [str(each) for part in get_args(inner)[1:] for each in part.metadata]
    return ", ".join([kind, *within(kind, bounds)])


def within(kind: str, bounds: list[str]) -> Iterator[str]:
    """The bounds of a value or of a list's length, in words."""
    lengths = {} if kind == "text" else LENGTHS
    for name, words in (BOUNDS | lengths).items():
        for bound in bounds:
            if found := re.search(rf"\b{name}=([-0-9.e]+)", bound):
                value, what = float(found[1]), " long" if name in LENGTHS else ""
                exact = f"{value:,.0f}" if value == int(value) else f"{value:g}"
                yield f"{words} {exact}{what}"


def plain(value: Any) -> str:
    """A value as TOML; "none" for what can be left out alone."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


BLOCKS: dict[str, Callable[[], str]] = {
    "task-reference": task_reference,
    "demo-guarantees": demo_guarantees,
    "limits": limits,
    "reasons": reasons,
    "releases": releases,
    "three-ways": three_ways,
    "units": units,
    "balance": balance,
    "whole-owners": whole_owners,
    "install-sizes": install_sizes,
    "default-settings": default_settings,
    "clip-and-attackers": clip_and_attackers,
}


def with_blocks(text: str) -> str:
    """The page with its blocks as they should be."""
    return BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]]()}{m[3]}", text)


def documents() -> list[Path]:
    """Pages that may hold a block."""
    return [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]


def wrong(scale: Scale = Scale.SMALL) -> list[str]:
    """Name the pages that differ from what would be written; of papers at one scale."""
    found = []
    for page in documents():
        text = page.read_text(encoding="utf-8")
        if with_blocks(text) != text:
            found.append(str(page.relative_to(ROOT)))
    if (PAPERS / "minutes.md").read_text(encoding="utf-8") != minutes():
        found.append("benchmarks/results/papers/minutes.md")
    for paper in TITLES:
        kept = (PAPERS / f"{paper}.md").read_text(encoding="utf-8")
        found += [
            f"benchmarks/results/papers/{paper}.md: {part.partition(chr(10))[0]}"
            for part in papers_page(paper, [scale]).split("\n## ")
            if part not in kept
        ]
    return found


def answers_schema() -> str:
    """The JSON schema of what `precad ask answer --json` prints."""
    schema = Answered.model_json_schema(mode="serialization")
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write them."""
    for page in documents():
        text = page.read_text(encoding="utf-8")
        if with_blocks(text) != text:
            page.write_text(with_blocks(text), encoding="utf-8")
    (ROOT / "docs" / "answers.schema.json").write_text(
        answers_schema(), encoding="utf-8"
    )
    (PAPERS / "minutes.md").write_text(minutes(), encoding="utf-8")
    for paper in TITLES:
        (PAPERS / f"{paper}.md").write_text(papers_page(paper), encoding="utf-8")


if __name__ == "__main__":
    main()
