"""The documents say what is there: links, sections, modules, tests and numbers.

Code cites a document as ``docs/soundness.md`` or ``docs/soundness.md, "Headroom"``; documents name
code by its path, and tests as ``path`` · ``function``.
"""

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from math import exp, log2, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from precad.common.account.advantages import advantages
from precad.common.aggregator.enrol.tokens import TOKEN_BYTES
from precad.common.aggregator.round.journal import AttemptState
from precad.common.aggregator.service.connections import (
    PER_CALLER,
    PER_OPERATOR,
    SILENT,
    SILENT_S,
)
from precad.common.aggregator.service.descriptors import BESIDE_CLIENTS, STRANGERS, descriptors_for
from precad.common.aggregator.service.limits import Limits
from precad.common.aggregator.service.turns import AT_ONCE, GRACE_S, LEAST_RATE
from precad.common.aggregator.training.feed import KEPT_EVENTS
from precad.common.aggregator.training.shelf import KEPT_MODELS
from precad.common.aggregator.validate.comparisons import comparisons_per_client
from precad.common.aggregator.validate.validator import MAX_BATCH_CLIENTS
from precad.common.description import MAX_FRACTIONAL_BITS, DeadlineSection
from precad.common.encode.clip import CLIENT_MARGIN, RECORD_MARGIN
from precad.common.enrolment import EIGHTHS, GRID_OCTAVES
from precad.common.errors import MAX_TEXT, Rejection
from precad.common.headroom import (
    MAX_BOUND,
    MIN_NOISE_UNITS,
    NOISE_DEVIATIONS,
    TAU,
)
from precad.common.identity.pki import PARTY_DAYS
from precad.common.keystream import KEY_BYTES
from precad.common.ring import WORD_BYTES
from precad.common.share.mask import SALT_BYTES
from precad.common.share.signature import (
    MAX_CERTIFICATE_BYTES,
    MAX_CERTIFICATES,
    MAX_SIGNATURE_BYTES,
)
from precad.common.task import Task
from precad.common.wire.serving import MAX_REQUEST_BYTES, SERVER_OPTIONS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "precad"
"""Links to the top-level folders; in a source distribution the folders themselves."""
PARTS = ("cli", "client", "common", "dealer", "experiments", "protos", "server_a", "server_b")
CODE = sorted(
    path
    for folder in (*(PACKAGE / part for part in PARTS), ROOT / "tests", ROOT / "benchmarks")
    for path in folder.rglob("*.py")
    if "_pb2" not in path.name and path != Path(__file__)
)
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TASK = Task.load(ROOT / "deploy" / "task.toml")
DEADLINES = DeadlineSection()
PROJECTIONS = Task.model_fields["projections"]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def flat(path: Path) -> str:
    """A document, or a source with its comments' line breaks undone, with single spaces."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        text = re.sub(r"\n\s*#\s?", " ", text)
    return " ".join(text.replace('"docs" / "', '"docs/').split())


def headings(path: Path) -> list[str]:
    """Without the code blocks, whose comments would look like headings."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    return re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """As the usual renderers make it: lower case, punctuation gone, blanks to hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-")


# --- citations in code -------------------------------------------------------------------------

CITED = re.compile(r'(?<![\w/.-])((?:[\w.-]+/)*[\w-]+\.md\b)(?:, "([^"]+)")?')


def wrong_citations(text: str) -> list[str]:
    """Documents that aren't there, and sections that they don't have."""
    wrong = []
    for name, section in CITED.findall(text):
        if not (ROOT / name).is_file():
            wrong.append(name)
        elif section and section not in headings(ROOT / name):
            wrong.append(f'{name}, "{section}"')
    return wrong


def test_every_document_and_section_that_code_cites_is_there() -> None:
    texts = {path: flat(path) for path in CODE}
    assert sum(len(CITED.findall(text)) for text in texts.values()) > 20
    assert {
        relative(p): wrong for p, text in texts.items() if (wrong := wrong_citations(text))
    } == {}


@pytest.mark.parametrize(
    "text",
    ["soundness.md", "docs/gone.md", 'see docs/soundness.md, "Part 7" and more', "privacy.md's"],
)
def test_the_check_sees_a_citation_of_what_is_not_there(text: str) -> None:
    assert wrong_citations(text)


# --- links and names in documents --------------------------------------------------------------

LINK = re.compile(r"\]\(([^)\s]+)\)")


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in LINK.findall(text):
        if "://" in target:
            continue
        name, _, fragment = target.partition("#")
        linked = page if not name else page.parent / name
        if not linked.exists() or (
            fragment and fragment not in {anchor(heading) for heading in headings(linked)}
        ):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_every_link_leads_to_a_file_and_a_section(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "link", ["[x](gone.md)", "[x](soundness.md#part-7)", "[x](#nothing)", "[x](../docs/gone/)"]
)
def test_the_check_sees_a_broken_link(link: str) -> None:
    assert broken_links(ROOT / "docs" / "index.md", link)


def test_the_index_links_every_document_of_its_folder() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for target in LINK.findall(index.read_text(encoding="utf-8"))
    }
    pages = set((ROOT / "docs").rglob("*.md")) - {index}
    assert len(pages) > 20
    assert sorted(map(relative, pages - linked)) == []


NAMED_PATH = re.compile(rf"`((?:{'|'.join(PARTS)}|src|tests|benchmarks|deploy|docs)/[\w./-]*)`")
TEST_FOLDERS = "|".join(sorted(p.name for p in (ROOT / "tests").iterdir() if p.is_dir()))
NAMED_TEST = re.compile(
    rf"`((?:tests/)?(?:{TEST_FOLDERS})/[\w/]+\.py)`((?: ·|,)(?:,? `test_\w+`)+)?"
)


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_every_path_that_a_document_names_exists(page: Path) -> None:
    named = sorted(set(NAMED_PATH.findall(page.read_text(encoding="utf-8"))))
    assert [n for n in named if not ((ROOT / n).exists() or (PACKAGE / n).exists())] == []


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_every_test_that_a_document_names_exists(page: Path) -> None:
    missing = []
    for name, tests in NAMED_TEST.findall(flat(page)):
        path = ROOT / "tests" / name.removeprefix("tests/")
        if not path.is_file():
            missing.append(name)
            continue
        wanted = set(re.findall(r"`(test_\w+)`", tests))
        missing += sorted(wanted - functions(path))
    assert missing == []


def test_every_test_function_named_alone_exists() -> None:
    known: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        known |= functions(path)
    named = {
        name
        for page in DOCUMENTS
        for name in re.findall(r"`(test_\w+)`", flat(page))
        if "*" not in name
    }
    assert len(named) > 15
    assert named - known - {path.stem for path in (ROOT / "tests").rglob("test_*.py")} == set()


def test_every_reference_value_that_a_table_names_is_there() -> None:
    golden = (ROOT / "tests" / "vectors" / "golden.json").read_text(encoding="utf-8")
    names = set(re.findall(r'"name": "([^"]+)"', golden))
    patterns = [
        pattern
        for page in ("privacy-accounting.md", "certificates.md")
        for pattern in re.findall(r"`(\w+\*)`", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    ]
    assert len(patterns) > 15
    assert [p for p in patterns if not any(fnmatch(name, p) for name in names)] == []


def glossary() -> Iterator[str]:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for entry in re.findall(r"^- \*\*(.+?)\.?\*\*", text, flags=re.MULTILINE):
        for term in re.split(r"[,;] ", entry):
            if len(term) > 2:
                yield term.lower().replace("_", " ")


def test_every_word_of_the_glossary_is_used() -> None:
    others = [page for page in DOCUMENTS if page.name != "glossary.md"]
    used = " ".join(flat(path) for path in (*others, *CODE)).lower().replace("_", " ")
    terms = list(glossary())
    assert len(terms) > 50
    assert [term for term in terms if not re.search(rf"\b{re.escape(term)}", used)] == []


# --- numbers -----------------------------------------------------------------------------------


def least_and_most(field: str) -> tuple[int, int]:
    limits = {type(m).__name__: m for m in Task.model_fields[field].metadata}
    return limits["Ge"].ge, limits["Le"].le


def berry_esseen(times: float) -> float:
    """Both ends' distance from the normal distribution, for N = times·β, entries up to 2τβ."""
    return 2 * 0.56 * 2 * sqrt(2) * TAU / times


def row_bound(times: float) -> float:
    """Upper bound of Pr[|z| ≤ τβ]."""
    return float(2 * norm.cdf(sqrt(2) * TAU / times) - 1) + berry_esseen(times)


def least_sound_length() -> int:
    return next(times for times in range(1, 100) if row_bound(times) < 1 / 2)


def clipped_too_long() -> float:
    """Share of random directions in the plane whose vector, clipped to 30.1, is above β."""
    angle = np.random.default_rng(1).uniform(0, 2 * np.pi, 400_000)
    x = np.trunc(30.1 * 2**16 * np.stack([np.cos(angle), np.sin(angle)]))
    return float(((x**2).sum(axis=0) > np.floor(30.1 * 2**16) ** 2).mean())


GOLDILOCKS = 2**64 - 2**32 + 1
HONEST = 2 * exp(-(TAU**2))
OPTIONS = dict(SERVER_OPTIONS)
LIMITS = Limits()
ROWS = PROJECTIONS.default
SOUNDNESS, PROTOCOL, INPUT, ENROLMENT = (
    "docs/soundness.md",
    "docs/protocol.md",
    "docs/hostile-input.md",
    "docs/enrolment.md",
)
# Document, what it says with one group for the number, and the number as the code has it.
NUMBERS: list[tuple[str, str, float]] = [
    (SOUNDNESS, r"where k = (\d+) by default", ROWS),
    (SOUNDNESS, r"−τβ ≤ z ≤ τβ, τ = (\d+)", TAU),
    (SOUNDNESS, r"at most 2\^−k\. .* when β ≤ 2\^(\d+)\.", log2(MAX_BOUND)),
    (SOUNDNESS, r"1 ≤ β ≤ 2\^(\d+) \|", log2(MAX_BOUND)),
    (SOUNDNESS, r"X·X < 2\^12·β² ≤ 2\^(\d+)", 12 + 2 * log2(MAX_BOUND)),
    (SOUNDNESS, r"lies in \[−2\^(\d+) − 1, 2\^62\)", 2 * log2(MAX_BOUND)),
    (SOUNDNESS, r"With f = 20 it means C ≤ (\d+)", MAX_BOUND / 2**20),
    (SOUNDNESS, r"At β = 2\^25: d up to ([\d,]+)", (2**63 - 1) // (2 * TAU * MAX_BOUND)),
    (SOUNDNESS, r"n·β \+ 2·(\d+)·s < 2\^62", NOISE_DEVIATIONS),
    (SOUNDNESS, r"s ≥ ([\d,]+) units", MIN_NOISE_UNITS),
    (SOUNDNESS, r"1 ≤ f ≤ (\d+);", MAX_FRACTIONAL_BITS),
    (SOUNDNESS, r"; (\d+) ≤ k ≤ \d+ \|", least_and_most("projections")[0]),
    (SOUNDNESS, r"; \d+ ≤ k ≤ (\d+) \|", least_and_most("projections")[1]),
    (SOUNDNESS, r"comparisons: (\d+) at k = 40", comparisons_per_client(TASK)),
    (SOUNDNESS, r"up to (\d+) clients are taken", MAX_BATCH_CLIENTS),
    (SOUNDNESS, r"draws a (\d+)-byte seed", KEY_BYTES),
    (SOUNDNESS, r"with a (\d+)-byte salt", SALT_BYTES),
    (SOUNDNESS, r"to R\(1 − 2\^−(\d+)\)", -log2(1 - RECORD_MARGIN)),
    (SOUNDNESS, r"\(β·2\^−f\)\(1 − 2\^−(\d+)\)", -log2(1 - CLIENT_MARGIN)),
    # What the proof computes, computed again.
    (SOUNDNESS, r"2k·e\^−49, which is ([\d.e-]+)\)", float(f"{ROWS * HONEST:.2g}")),
    (SOUNDNESS, r"≤ 2e\^\{−τ²\} = ([\d.e-]+)\.", float(f"{HONEST:.3g}")),
    (SOUNDNESS, r"80·e\^\{−49\} = ([\d.e-]+),", float(f"{ROWS * HONEST:.2g}")),
    (SOUNDNESS, r"may have, 256, ([\d.e-]+?)\. ", float(f"{256 * HONEST:.2g}")),
    (SOUNDNESS, r"together ([\d.]+) < 0\.47", round(row_bound(64), 4)),
    (SOUNDNESS, r"at N = 64β they are ([\d.]+) and", round(row_bound(64) - berry_esseen(64), 3)),
    (SOUNDNESS, r"are 0\.123 and (0\.\d+), together", round(berry_esseen(64), 3)),
    (SOUNDNESS, r"\(N = (\d+)β would still do", least_sound_length()),
    (SOUNDNESS, r"16 bits, (\d+) % of the vectors", round(100 * clipped_too_long())),
    (SOUNDNESS, r"vector \[1, 2\^48, 0, …\] has squared norm (\d)", (1 + 2**96) % GOLDILOCKS),
    (SOUNDNESS, r"whose norm is ([\d,]+) \(", round(65536 * sqrt(1000))),
    (SOUNDNESS, r"every i from 0 to (\d+)", 63),
    (PROTOCOL, r"\| `enrol` \| (\d+) s", DEADLINES.enrol),
    (PROTOCOL, r"\| `collect` \| (\d+) s", DEADLINES.collect),
    (PROTOCOL, r"\| `rejoin` \| (\d+) s", DEADLINES.rejoin),
    (PROTOCOL, r"\| `outage` \| (\d+) s", DEADLINES.outage),
    (PROTOCOL, r"\| `peer` \| (\d+) s", DEADLINES.peer),
    (PROTOCOL, r"the last (\d+) events", KEPT_EVENTS),
    (PROTOCOL, r"the newest (\d+) models", KEPT_MODELS),
    (PROTOCOL, r"two seeds of (\d+) bytes", KEY_BYTES),
    (INPUT, r"one message \| (\d+) KiB", MAX_REQUEST_BYTES / 1024),
    (INPUT, r"task's length: (\d+) bytes for A", KEY_BYTES),
    (INPUT, r"(\d+) of 4,096 bytes", MAX_CERTIFICATES),
    (INPUT, r"\d of ([\d,]+) bytes", MAX_CERTIFICATE_BYTES),
    (INPUT, r"next piece \| (\d+) s", LIMITS.idle_s),
    (INPUT, r"models fetched at once \| (\d+);", AT_ONCE),
    (INPUT, r"lets the server wait ([\d.]+) s longer", GRACE_S),
    (INPUT, r"longer than (\d+) MB a second", LEAST_RATE / 1e6),
    (INPUT, r"up to (\d+) KiB on the way", OPTIONS["grpc.http2.lookahead_bytes"] / 1024),
    (INPUT, r"(\d+) watches", LIMITS.watches),
    (INPUT, r"(\d+) uploads", LIMITS.submissions),
    (INPUT, r"(\d+) model fetches", LIMITS.fetches),
    (INPUT, r"calls on one connection \| (\d+)", OPTIONS["grpc.max_concurrent_streams"]),
    (INPUT, r"a TLS handshake \| (\d+) s", OPTIONS["grpc.server_handshake_timeout_ms"] / 1000),
    (INPUT, r"connections of one caller \| (\d+)", PER_CALLER),
    (INPUT, r"; (\d+) of the operator and", PER_OPERATOR),
    (INPUT, r"connection without a call \| (\d+) s after", SILENT_S),
    (INPUT, r"two a client and ([\d,]+),", STRANGERS),
    (INPUT, r"open files; (\d+) at the", OPTIONS["grpc.max_allowed_incoming_connections"]),
    (INPUT, r"begins, (\d+) s between", OPTIONS["grpc.max_connection_idle_ms"] / 1000),
    (INPUT, r"of such connections (\d+) at once", SILENT),
    (INPUT, r"calls begun by one caller \| (\d+) at once", LIMITS.burst),
    (INPUT, r"at once, then (\d+) a second", LIMITS.per_s),
    (INPUT, r"an error's text \| ([\d,]+) characters", MAX_TEXT),
    (ENROLMENT, r"one message \| (\d+) KiB", MAX_REQUEST_BYTES / 1024),
    (ENROLMENT, r"streams on one connection \| (\d+)", OPTIONS["grpc.max_concurrent_streams"]),
    (ENROLMENT, r"calls begun \| (\d+) at once", LIMITS.burst),
    (ENROLMENT, r"at once, then (\d+) a second", LIMITS.per_s),
    (ENROLMENT, r"connections with calls \| (\d+)", PER_CALLER),
    (ENROLMENT, r"one of (\d+) rates", GRID_OCTAVES * len(EIGHTHS) + 1),
    (ENROLMENT, r"and p/(\d+), the floor", 2**GRID_OCTAVES),
    (ENROLMENT, r"next piece \| within (\d+) s", LIMITS.idle_s),
    (ENROLMENT, r"(\d+) watches", LIMITS.watches),
    (ENROLMENT, r"(\d+) uploads", LIMITS.submissions),
    (ENROLMENT, r"(\d+) model fetches", LIMITS.fetches),
    (ENROLMENT, r"in a header \| (\d+) bytes", MAX_SIGNATURE_BYTES),
    (ENROLMENT, r"(\d+) of 4,096 bytes", MAX_CERTIFICATES),
    (ENROLMENT, r"(\d+) random bytes in base32", TOKEN_BYTES),
    ("docs/privacy-accounting.md", r"at least ([\d,]+) units; the denominator", MIN_NOISE_UNITS),
    ("docs/privacy-accounting.md", r": ([\d.e-]+) for ε = 4, n = 1,000 and k = 40",
     float(f"{(1 + exp(4)) * 1000 * ROWS * HONEST:.2g}")),
    ("docs/privacy-accounting.md", r": ([\d.e-]+) for 1,000 attempts at ε = 4 and k = 40",
     float(f"{advantages(4.0, 1000, 40):.2g}")),
    ("docs/certificates.md", r"\(b = rows, (\d+) by default\)", ROWS),
    ("docs/decisions/range-test.md", r"\bk = (\d+) secret random projections", ROWS),
    ("docs/decisions/range-test.md", r"lie within ±(\d+)β", TAU),
    ("docs/decisions/range-test.md", r"never fail \(([\d.e-]+)\)", float(f"{ROWS * HONEST:.2g}")),
    ("docs/decisions/discrete-noise.md", r"at least ([\d,]+) units", MIN_NOISE_UNITS),
    ("docs/decisions/commitments.md", r"with a (\d+)-byte salt", SALT_BYTES),
    ("docs/deployment.md", r"two uploads\) and ([\d,]+) more", descriptors_for(0)),
    ("docs/deployment.md", r"connections than leave (\d+) descriptors", BESIDE_CLIENTS),
    ("docs/deployment.md", r"(\d+)·d bytes a submission", WORD_BYTES),
    ("docs/identity.md", r"Certificates last (\d+) days", PARTY_DAYS),
    ("README.md", r"on (\d+) secret random projections", ROWS),
    ("README.md", r"up to 2⁻([⁰¹²³⁴⁵⁶⁷⁸⁹]+) a submission", ROWS),
    ("SECURITY.md", r"with probability 2⁻([⁰¹²³⁴⁵⁶⁷⁸⁹]+) a submission", ROWS),
    ("SECURITY.md", r"refused below ([\d,]+) units", MIN_NOISE_UNITS),
]  # fmt: skip


SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", ",")


def number(text: str) -> float:
    return float(text.translate(SUPERSCRIPTS))


@pytest.mark.parametrize(
    ("document", "pattern", "value"), NUMBERS, ids=[f"{d}: {p}" for d, p, _ in NUMBERS]
)
def test_a_number_in_a_document_is_the_codes(document: str, pattern: str, value: float) -> None:
    found = re.findall(pattern, flat(ROOT / document))
    assert found, "the document doesn't say it any more"
    assert {number(text) for text in found} == {value}


def test_the_states_and_reasons_are_the_codes() -> None:
    protocol = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    states = protocol.split("## States of an attempt")[1].split("## After a break")[0]
    rows = re.findall(r"^\| ([a-z][\w-]*) \|", states, flags=re.MULTILINE)
    assert set(rows) - {"state"} == {state.value for state in AttemptState}
    soundness = flat(ROOT / "docs" / "soundness.md").split("## What must be rejected")[1]
    cells = re.findall(r"\| ((?:`[a-z-]+`(?:, )?)+) \|", soundness)
    reasons = {reason for cell in cells for reason in re.findall(r"`([a-z-]+)`", cell)}
    assert len(reasons) >= 6
    assert reasons <= {reason.value for reason in Rejection}


def test_every_deadline_has_its_row() -> None:
    rows = set(
        re.findall(
            r"^\| `(\w+)` \| [\d.]+ s", (ROOT / PROTOCOL).read_text("utf-8"), flags=re.MULTILINE
        )
    )
    assert rows == set(DeadlineSection.model_fields)


# --- the protocol's page -----------------------------------------------------------------------


def section(document: str, heading: str) -> str:
    text = (ROOT / document).read_text(encoding="utf-8")
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_an_updates_way_takes_no_step_back_between_folders() -> None:
    lines = re.findall(r"^\d+\. (.+)$", section(PROTOCOL, "An update's way"), flags=re.MULTILINE)
    assert len(lines) == 10
    folders: list[str] = []
    for line in lines:
        # What stands in brackets is used there, and isn't where the update goes.
        step = re.sub(r"\(.*?\)", "", line)
        folders += [path.rsplit("/", 1)[0] for path in re.findall(r"`([\w/]+)\.py`", step)]
    visited = [f for f, before in zip(folders, ["", *folders], strict=False) if f != before]
    assert len(visited) == len(set(visited))


def test_every_message_between_the_servers_is_one_that_they_send() -> None:
    sources = " ".join(
        path.read_text(encoding="utf-8")
        for part in ("common/aggregator", "server_a", "server_b")
        for path in (PACKAGE / part).rglob("*.py")
    )
    named = re.findall(r"`([a-z-]+)`", section(PROTOCOL, "One attempt"))
    assert len(named) >= 6
    assert [name for name in named if f'"{name}"' not in sources] == []
