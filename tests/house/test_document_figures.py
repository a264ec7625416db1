"""Numbers in documents are the code's or a committed result's, and what is generated is
current.

A phrase stands in its document as it stands here, with the code's value in it. Whole
tables are written by docs/generate.py. All other measured figures come from a result,
or say where from: a number with a unit of time, memory, share or speed; a table with
two decimals has some.

    <!-- figures: certify_votes certified.*.seconds_in_all; mean load rounds.2.round_s
    -->

names results (benchmarks/results) and places in them: each figure of what follows is
one of those values, converted and rounded as it is shown. ``<!-- stated: KIND -->``
says which of ``KINDS`` the figures of what follows are. A mark before a heading is for
its whole section.
"""

import json
import re
import runpy
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from math import exp, log2, sqrt
from pathlib import Path

import numpy as np
import pytest
from benchmarks.rounds.document import FORMAT
from benchmarks.rounds.show import as_text
from scipy.stats import norm
from tests.house.test_documents import flat, text_of
from tests.rig.accounts import composed
from tests.rig.documents import Document
from tests.rig.epsilons import record_epsilon
from tests.rig.pages import ROOT

from precad.accounting.adversaries import Run
from precad.accounting.composition import _TOLD_APART
from precad.accounting.events import poisson_gaussian, steps_as_chosen
from precad.accounting.group_rdp import _MOMENT_ROUNDING
from precad.accounting.guarantees import (
    LOG_ADVANTAGE,
    USES,
    advantages,
    honest_rejection,
)
from precad.accounting.losses import _CELLS_PER_DEVIATION, _LEAST_LOG_WEIGHT
from precad.aggregator.noise import TAIL
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training.model_store import KEPT_MODELS
from precad.aggregator.training.session import KEPT_EVENTS
from precad.aggregator.validate.check_by_proof import words_bytes
from precad.aggregator.validate.validation import (
    MAX_BATCH_CLIENTS,
    comparisons_per_client,
)
from precad.certify.group_guarantees import _ROUNDING
from precad.certify.guarantee import HASHES
from precad.common.errors import Rejection
from precad.common.fixed_point import CLIENT_MARGIN, RECORD_MARGIN
from precad.common.identity.authority import PARTY_DAYS
from precad.common.identity.mutual_tls import WIRE_VERSION
from precad.common.mechanism import (
    CLIP_ROUNDING,
    MAX_BOUND,
    NOISE_DEVIATIONS,
    RATE_EIGHTHS,
    RATE_OCTAVES,
)
from precad.common.proof_shape import HALF_WIDTHS, LEAST_ROWS, P, ProofShape
from precad.common.ring import KEY_BYTES, SALT_BYTES, WORD_BYTES
from precad.common.task import MIN_NOISE_UNITS, TAU, Task
from precad.common.task_schema import MAX_FRACTIONAL_BITS
from precad.common.wire.connections import PER_CLIENT, STRANGERS

TASK = Task.load(ROOT / "deploy" / "task.toml")
ROWS = Task.model_fields["projections"].default
LIMITS = {type(m).__name__: m for m in Task.model_fields["projections"].metadata}
HONEST = 2 * exp(-(TAU**2))  # Most that an honest row fails with
PROVED: Document = {"projections": LEAST_ROWS, "malicious_server": True}
PROVED |= {"record_rate": 0.1, "client_rate": 1.0, "noise_multiplier": 1.0}
PROOF = Run(**PROVED, rounds=1000, attempts=1000)


def berry_esseen(times: float, width: int = TAU) -> float:
    """Both ends' distance from the normal distribution, for N = times·β, |X_j| ≤
    2·width·β."""
    return 2 * 0.56 * 2 * sqrt(2) * width / times


def row_bound(times: float, width: int = TAU) -> float:
    """Upper bound of Pr[|z| ≤ width·β]."""
    return float(2 * norm.cdf(sqrt(2) * width / times) - 1) + berry_esseen(times, width)


def least_sound_length(width: int = TAU) -> int:
    return next(times for times in range(1, 100) if row_bound(times, width) < 1 / 2)


def sizes(dimension: int) -> str:
    """The row of part 4's table, for β from 2^20 to 2^25."""
    least, most = (ProofShape(dimension, bound) for bound in (2**20, 2**25))

    def both(low: float, high: float) -> str:
        return f"{low:,.0f}" if round(low) == round(high) else f"{low:,.0f}–{high:,.0f}"

    columns = both(least.columns, most.columns)
    more = both(*(8 * (each.body_words - dimension) / 1000 for each in (least, most)))
    exchanged = 2 * words_bytes(most) / 1000
    between = f"{exchanged:.0f}" if exchanged > 20 else f"{exchanged:.1f}"
    return f"| {most.points:,} | {columns} | {more} | {between} |"


def clipped_too_long() -> float:
    """Share of random directions in the plane whose vector, clipped to 30.1, is above
    β."""
    angle = np.random.default_rng(1).uniform(0, 2 * np.pi, 400_000)
    x = np.trunc(30.1 * 2**16 * np.stack([np.cos(angle), np.sin(angle)]))
    return float(((x**2).sum(axis=0) > np.floor(30.1 * 2**16) ** 2).mean())


def published_epsilon(sigma: float) -> float:
    return record_epsilon(
        record_rate=0.05, noise_multiplier=sigma, participations=500, delta=1e-5
    )


def power(probability: float, digits: str = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹") -> str:
    """2 to a whole number, as a text without mark-up has it."""
    return "2" + f"{log2(probability):.0f}".translate(
        str.maketrans("-0123456789", digits)
    )


def in_line(probability: float) -> str:
    return "2^" + power(probability, "−0123456789")[1:]


POINTS = ProofShape(10**6, MAX_BOUND).points


def of_one_point(dimension: int) -> float:
    """What one submission may add to the soundness error: 2N/(p − 2N)."""
    points = ProofShape(dimension, MAX_BOUND).points
    return 2 * points / (P - 2 * points)


STEP = poisson_gaussian(rate=0.2, noise_multiplier=2.0)
CHOSEN = composed(*steps_as_chosen(STEP, versions=10, further=1)).epsilon(1e-5)
"""Of the page's example of a version that is released again."""
SPARE_TAIL = (1 + exp(20)) * 1e12 * TAIL
BOTH_NOISES = round(np.pi**2 * MIN_NOISE_UNITS**2, -7)
"""2π²σ²k/(k+1) at k = 1, in its first digit."""


PHRASES = {
    "README.md": [
        f"{power(2.0**-ROWS)} (`crypten`",
        f"for {power(HASHES)} hashes",
    ],
    "docs/soundness.md": [
        f"where k = {ROWS} by default",
        f"below {np.ceil(1e20 * ROWS * HONEST):.0f}e-20 at k = {ROWS}",
        f"below {np.ceil(1e20 * ROWS * HONEST):.0f}e-20 a submission",
        (
            f"At k = {LEAST_ROWS} and T = {in_line(HASHES)} it is"
            f" {in_line(HASHES * 2.0**-LEAST_ROWS)} + Q·2N/(p − 2N)."
        ),
        f"{in_line(of_one_point(10**6))} at 10^6 (N = {POINTS:,})",
        f"{in_line(of_one_point(10**8))} at 10^8",
        f"would bias a word by {in_line((2**64 - P) / P)}.",
        f"−τβ ≤ z ≤ τβ, τ = {TAU}",
        f"1 ≤ β ≤ 2^{log2(MAX_BOUND):.0f} |",
        (
            f"X·X < 2^12·β² ≤ 2^{12 + 2 * log2(MAX_BOUND):.0f} when β ≤"
            f" 2^{log2(MAX_BOUND):.0f}."
        ),
        f"lies in [−2^{2 * log2(MAX_BOUND):.0f} − 1, 2^62)",
        f"With f = 20 it means C ≤ {MAX_BOUND // 2**20}",
        f"At β = 2^25: d up to {(2**63 - 1) // (2 * TAU * MAX_BOUND):,}",
        f"n·β + 2·{NOISE_DEVIATIONS:.0f}·s < 2^62",
        f"s ≥ {MIN_NOISE_UNITS:,.0f} units",
        f"1 ≤ f ≤ {MAX_FRACTIONAL_BITS}; {LIMITS['Ge'].ge} ≤ k ≤ {LIMITS['Le'].le} |",
        f"comparisons: {comparisons_per_client(TASK)} at k = {ROWS}",
        f"up to {MAX_BATCH_CLIENTS} clients",
        f"{KEY_BYTES}-byte seed",
        f"with a {SALT_BYTES}-byte salt",
        f"to R(1 − 2^−{-log2(1 - RECORD_MARGIN):.0f})",
        f"(β·2^−f)(1 − 2^−{-log2(1 - CLIENT_MARGIN):.0f})",
        # What the proof computes, computed again.
        f"2k·e^−49, which is {ROWS * HONEST:.1e}",
        f"≤ 2e^{{−τ²}} = {HONEST:.3g}.",
        f"{2 * ROWS}·e^{{−49}} = {ROWS * HONEST:.2g},",
        f"may have, 256, {256 * HONEST:.2g}.",
        (
            f"they are {row_bound(64) - berry_esseen(64):.3f} and"
            f" {berry_esseen(64):.3f}, together {row_bound(64):.4f}"
        ),
        f"(N = {least_sound_length()}β would still do",
        f"{100 * clipped_too_long():.0f} % of the vectors",
        f"vector [1, 2^48, 0, …] has squared norm {(1 + 2**96) % P}",
        f"whose norm is {65536 * sqrt(1000):,.0f}",
        f"under `proof` {(2**63 - 1) // (4 * HALF_WIDTHS * MAX_BOUND):,} |",
        f"with at least {LEAST_ROWS} of part 1's rows",
        f"With B = {HALF_WIDTHS}β",
        f"2k·e^−64, {2 * LEAST_ROWS * exp(-(HALF_WIDTHS**2)):.1e} at k = {LEAST_ROWS}",
        f"‖X‖ ≥ {least_sound_length(HALF_WIDTHS)}β.",
        f"+ {berry_esseen(1, 1):.3f}·r, below",
        f"{row_bound(69, HALF_WIDTHS) + 5e-5:.4f} where",
        *(sizes(10**power) for power in range(4, 8)),
        sizes(650),
    ],
    "docs/protocol.md": [
        f"the last {KEPT_EVENTS} events",
        f"the newest {KEPT_MODELS} models",
        f"two seeds of {KEY_BYTES} bytes",
        f"The wire version is {WIRE_VERSION}.",
        *(f"| {state.value} |" for state in AttemptState),
    ],
    "docs/enrolment.md": [
        f"one of {RATE_OCTAVES * len(RATE_EIGHTHS) + 1} rates",
        f"and p/{2**RATE_OCTAVES}, the floor",
    ],
    "docs/cheating-server.md": [
        f"most 2k·e^−64 a submission, {2 * LEAST_ROWS * exp(-(HALF_WIDTHS**2)):.1e}.",
        f"A submission has {USES} such uses",
        f"advantages = M·{USES}·2^−{-LOG_ADVANTAGE}",
        f"{USES * 2.0**LOG_ADVANTAGE:.1e} a submission.",
        f"{advantages(0.0, replace(PROOF, attempts=1, dimension=10**8)) / 2:.1e} at d",
        f"add {honest_rejection(4.0, PROOF) + advantages(4.0, PROOF):.1e} to δ",
        f"{words_bytes(ProofShape(10**6, MAX_BOUND)):,} bytes at d = 1,000,000",
        f"{words_bytes(ProofShape(10**4, MAX_BOUND)):,} at d = 10,000",
    ],
    "docs/runbooks/upgrade.md": [f"({WIRE_VERSION} since this one)"],
    "CHANGELOG.md": [f"wire version, which is {WIRE_VERSION}:"],
    "docs/privacy-accounting.md": [
        f"R' = R + √d·2^−f + C·{in_line(CLIP_ROUNDING)}, σ",
        f"clipped to (1 − {in_line(1 - CLIENT_MARGIN)})β",
        f"less than the C·{in_line(CLIP_ROUNDING)} that is allowed",
        f"at most {1 / (6 * _CELLS_PER_DEVIATION**2):.0e}".replace("e-0", "e-"),
        f"but for e^−{-_TOLD_APART:.0f} (Bhattacharyya)",
        f"10·d·e^−{BOTH_NOISES:,.0f} of 1",
        f"of at most {in_line(TAIL)} a coordinate",
        f"at d·T = 10^12 and ε = 20, less than 10^−{-np.log10(SPARE_TAIL):.0f}",
        f"below 2k·e^−{TAU**2}",
        f"and {1e7 * ROWS * HONEST:.1e}·(1 + e^ε) for n = 10^7",
        f"(1 + e^ε)·n·2k·e^−{HALF_WIDTHS**2}. There",
        f"the cap says {CHOSEN:.3f}.",
        f"at least {MIN_NOISE_UNITS:,.0f} units; the denominator",
        (
            "exact "
            f"{', '.join(f'{published_epsilon(s):.3f}' for s in (1.0, 1.5, 2.0))};"
            " real"
        ),
        (
            f"{(1 + exp(4)) * 1000 * ROWS * HONEST:.2g} for ε = 4, n = 1,000 and k ="
            f" {ROWS}"
        ),
        f"{advantages(4.0, PROOF):.2g} for 1,000 attempts at ε = 4",
    ],
    "docs/certificates.md": [
        f"(b = rows, {ROWS} by default)",
        f"below e^−{-_LEAST_LOG_WEIGHT:.0f} are left out",
        f"{_ROUNDING:g} is added to every δ",
        f"{_MOMENT_ROUNDING:g} of α and",
        f"T = {in_line(HASHES)} hashes",
    ],
    "docs/glossary.md": [f"R + √d·2^−f + C·{in_line(CLIP_ROUNDING)}"],
    "docs/decisions/range-test.md": [
        f"k = {ROWS} secret random projections",
        f"lie within ±{TAU}β",
        f"never fail ({ROWS * HONEST:.2g})",
        f"error is {in_line(2.0**-ROWS)} a submission",
    ],
    "docs/decisions/discrete-noise.md": [
        f"at least {MIN_NOISE_UNITS:,.0f} units",
        f"below {in_line(TAIL)} a coordinate",
    ],
    "docs/decisions/commitments.md": [f"with a {SALT_BYTES}-byte salt"],
    "docs/deployment.md": [
        f"{PER_CLIENT} connections a client and {STRANGERS:,} more",
        f"{WORD_BYTES}·d bytes a submission",
    ],
    "docs/identity.md": [f"Certificates last {PARTY_DAYS} days"],
    "SECURITY.md": [
        f"refused below {MIN_NOISE_UNITS:,.0f} units",
        f"{power(2.0**-ROWS)} a submission",
        f"within {power(TAIL)} a coordinate",
        f"counts {power(HASHES)} hashes",
    ],
}


HELD = {
    "docs/privacy-accounting.md": {
        "3.4e-5": "aggregator/test_privacy_cap.py",
        "2^−40": "client/test_record_gradients.py",
        "1e-5": "printed",
        "1e-30": "integration/test_account_command.py",
        "1e-6": "accounting/test_exact_composition.py",
        "1e-12": "accounting/test_exact_composition.py",
        "1e-15": "accounting/test_exact_composition.py",
    },
    "docs/own-model.md": {"1e-5": "client/test_record_gradients.py"},
    "docs/simulate.md": {"2^−64": "norm_check/test_joint_draw.py"},
    "SECURITY.md": {
        "1e-12": "accounting/test_exact_composition.py",
        "1e-15": "aggregator/test_admission.py",
    },
    "docs/decisions/compact-releases.md": {"2^−75": "aggregator/test_cut_shares.py"},
    "docs/soundness.md": {"10^−5": "printed", "2^−62": "certify/test_certify.py"},
    "README.md": {"2⁻⁶²": "certify/test_certify.py"},
}
"""Probabilities and errors that no phrase has, by the test that holds them; ``printed``
where somebody else's paper or program says it."""
PROBABILITY = re.compile(
    r"(?<!δ = )(?<![\w.])"
    r"(?:2⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+|(?:2|10|e)\^\{?−[\d,.]*\d|\d+(?:\.\d+)?e-\d+)"
)
STATING = [
    each
    for each in (
        ROOT / "SECURITY.md",
        ROOT / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    )
    if each.parent.name != "papers"
]


@pytest.mark.parametrize("page", STATING, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_stated_probability_is_the_codes_or_names_its_test(page: Path) -> None:
    """A δ that a figure is at is a parameter, which its figure is held with."""
    name = str(page.relative_to(ROOT))
    held = HELD.get(name, {})
    phrases = " ".join(PHRASES.get(name, []))
    stated = PROBABILITY.findall(WRITTEN.sub("", flat(page)))
    assert {each for each in stated if each not in phrases} - set(held) == set()
    tests = {each for each in held.values() if each != "printed"}
    assert all((ROOT / "tests" / each).exists() for each in tests)


@pytest.mark.parametrize("document", PHRASES)
def test_numbers_in_a_document_are_the_codes(document: str) -> None:
    text = flat(ROOT / document)
    assert [phrase for phrase in PHRASES[document] if phrase not in text] == []


def test_every_reason_of_a_rejection_in_the_soundness_page_exists() -> None:
    reasons = {f"`{reason.value}`" for reason in Rejection}
    rejected = text_of(ROOT / "docs" / "soundness.md").split(
        "## What must be rejected"
    )[1]
    parts = {
        part.strip()
        for cell in re.split(r"[|\n]", rejected)
        for part in cell.split(", ")
    }
    codes = {part for part in parts if part.startswith("`") and "/" not in part}
    assert codes <= reasons
    assert len(codes) >= 6


def generator() -> Document:
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


def test_what_is_generated_into_the_documents_is_current() -> None:
    """Of the papers the small scale; tests/soak/test_experiments.py has the other."""
    assert generator()["wrong"]() == [], "run PYTHONPATH=src:. python docs/generate.py"


def result(name: str) -> Document:
    text = (ROOT / f"benchmarks/results/{name}.json").read_text(encoding="utf-8")
    found: Document = json.loads(text)
    return found


def test_the_benchmarks_tables_are_those_of_their_documents() -> None:
    bench = result("bench")
    assert (bench["format"], bench["complete"]) == (FORMAT, True)
    assert text_of(ROOT / "benchmarks/results/bench.txt") == as_text(bench)
    # ``PYTHONPATH=. python benchmarks/checks.py --page`` writes them anew.
    checks = runpy.run_path(str(ROOT / "benchmarks" / "checks.py"))
    assert checks["tables"](result("checks")) in text_of(
        ROOT / "docs/cheating-server.md"
    )
    # A submission takes at most 64 bytes between the servers besides its body.
    assert 0 < checks["between_servers"](result("checks"), "proof") <= 2_200


@pytest.mark.parametrize("page", ["ceremony", "round"])
def test_drawn_pictures_are_what_their_script_draws(page: str) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "pictures" / f"draw_{page}.py"))[
        "pictures"
    ]()
    for name, text in drawn.items():
        assert text_of(ROOT / "docs" / "pictures" / name) == text


# --- measured figures
# --------------------------------------------------------------------------

RESULTS = ROOT / "benchmarks/results"
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
KINDS = {
    "setting": "a deadline, limit or share that the code or a task sets",
    "formula": "what follows from numbers on the page",
    "output": "what a command prints, of which another test plays the command",
    "papers": (
        "of the papers' experiments: benchmarks/results/papers, by python -m"
        " research run"
    ),
    "printed": "what somebody else's paper or program says",
}
"""Kinds of figures without a result of their own; ``stated: script PATH`` names what
makes one."""
UNITS = {
    **dict.fromkeys(("%", "points"), 100.0),
    "times as": 1.0,
    "s": 1.0,
    "ms": 1e3,
    "minutes": 1 / 60,
    "hours": 1 / 3600,
    **dict.fromkeys(("kB", "KB"), 1e-3),
    "KiB": 2**-10,
    "MiB": 2**-20,
    "MB": 1e-6,
    "GB": 1e-9,
}  # Units, and what seconds, bytes, shares and ratios are multiplied by for them
BASES = {"mib": 2.0**20, "mb": 1e6, "ms": 1e-3, "percent": 0.01}
"""Of a result's numbers, by a word in their names; all others are seconds, bytes or
shares."""
NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?|\.\d+)"
FIGURE = re.compile(
    rf"(?<![\w.,^√−-])((?:{NUMBER}(?:,? (?:to|and|or) |,"
    rf" ))*)({NUMBER})\s?({'|'.join(UNITS)})(?!\w)"
)
DECIMAL = re.compile(r"(?<![\w.,^=·`])(?:\d+\.\d+|\.\d+)(?![\w.`])")
MARK = re.compile(r"<!-- (figures|stated): (.*?) -->\n?", re.DOTALL)
WRITTEN = re.compile(
    r"```.*?```|<!-- generated: .*?<!-- end -->|<!-- \S+ writes this -->.*?<!-- to"
    r" here -->",
    re.DOTALL,
)  # Blocks of code, and what a script writes
MOST_PLACES = 60  # Of one mark: among more values any figure finds itself by chance


def figures(text: str) -> list[tuple[str, str]]:
    """(number, unit) of each measured figure; of "2 to 7 s" both."""
    found = []
    for before, number, unit in FIGURE.findall(re.sub(r"`[^`\n]*`", "", text)):
        if unit == "points" and "," in number:
            continue  # of a test set
        found += [(each, unit) for each in re.findall(NUMBER, before)] + [
            (number, unit)
        ]
    head, *rows = text.splitlines()
    if (column := head.split("|")[1:2]) and column[0].strip() in UNITS:
        cells = [cell for row in rows for cell in row.split("|")[2:]]
        found += [
            (each, column[0].strip())
            for cell in cells
            for each in re.findall(NUMBER, cell)
        ]
    return found


def blocks(page: Path) -> Iterator[tuple[str, tuple[str, str] | None]]:
    """Each paragraph or table of a page, with the mark that it stands under."""
    of_section: tuple[int, tuple[str, str]] | None = None
    pending: tuple[str, str] | None = None
    text = WRITTEN.sub("", page.read_text("utf-8"))
    for block in re.split(r"\n\s*\n", text):
        own = MARK.match(block.lstrip())
        mark = (own[1], own[2]) if own else pending
        rest = MARK.sub("", block).strip()
        pending = mark if not rest else None
        if not rest:
            continue
        if heading := re.match(r"(#+) ", rest):
            level = len(heading[1])
            if of_section is not None and level <= of_section[0]:
                of_section = None
            of_section = (level, mark) if mark else of_section
        yield rest, mark or (of_section[1] if of_section else None)


def leaves(value: object, place: str = "") -> Iterator[tuple[str, float]]:
    match value:
        case dict():
            for name, each in value.items():
                yield from leaves(each, f"{place}.{name}" if place else name)
        case list():
            for i, each in enumerate(value):
                yield from leaves(each, f"{place}.{i}")
        case int() | float():
            yield place, float(value)


def of_results(named: str) -> list[float]:
    """The values at the places of a mark, in seconds, bytes and shares; or their
    mean."""
    found = []
    for part in named.split(";"):
        *mean, name, places = part.strip().split(
            " ", part.strip().startswith("mean ") + 1
        )
        document = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        some = [
            value
            * BASES.get(next((w for w in re.split(r"[._]", at) if w in BASES), ""), 1.0)
            for at, value in leaves(document)
            if any(fnmatchcase(at, pattern.strip()) for pattern in places.split("|"))
        ]
        assert some, f"{name}.json has nothing at {places}"
        found += [sum(some) / len(some)] if mean else some
    assert len(found) <= MOST_PLACES, f"{named}: {len(found)} values; name the places"
    return found


def shows(number: str, unit: str, value: float) -> bool:
    """Whether a value, in a unit, is shown as this number: rounded to its last
    digit."""
    plain = number.replace(",", "")
    last = (
        len(plain) - len(plain.rstrip("0"))
        if "." not in plain
        else -len(plain.split(".")[1])
    )
    return abs(value * UNITS[unit] - float(plain)) <= 0.5001 * 10.0**last


def wrong_in(page: Path) -> list[str]:
    phrases = " ".join(PHRASES.get(str(page).removeprefix(f"{ROOT}/"), []))
    found = []
    for block, mark in blocks(page):
        shown = [each for each in figures(block) if " ".join(each) not in phrases]
        many = block.startswith("|") and len(DECIMAL.findall(block)) > 1
        if not shown and not many:
            continue
        kind, named = mark or ("", "")
        if kind == "figures":
            values = of_results(named)
            found += [
                f"{number} {unit} isn't in {named}"
                for number, unit in shown
                if not any(shows(number, unit, value) for value in values)
            ]
        elif kind == "stated":
            one, _, path = named.partition(" ")
            if not (
                one in KINDS or (one == "script" and path and (ROOT / path).exists())
            ):
                found.append(f"stated: {named} is no kind")
        else:
            few = [" ".join(each) for each in shown] or DECIMAL.findall(block)[:2]
            found.append(f"from nowhere: {', '.join(few)}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_measured_figure_is_a_results_or_says_where_it_is_from(
    page: Path,
) -> None:
    assert wrong_in(page) == []
