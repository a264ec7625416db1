"""Numbers, states and reasons in documents are the code's."""

import json
import re
from math import exp, log2, sqrt
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from tests.unit.test_documents import ROOT, flat, section

from precad.accounting.advantages import advantages
from precad.aggregator.enrol.tokens import TOKEN_BYTES
from precad.aggregator.rounds.journal import AttemptState
from precad.aggregator.rpc.connections import (
    PER_CALLER,
    PER_OPERATOR,
    SILENT,
    SILENT_S,
)
from precad.aggregator.rpc.descriptors import BESIDE_CLIENTS, STRANGERS, descriptors_for
from precad.aggregator.rpc.limits import Limits
from precad.aggregator.rpc.turns import AT_ONCE, GRACE_S, LEAST_RATE
from precad.aggregator.training.feed import KEPT_EVENTS
from precad.aggregator.training.shelf import KEPT_MODELS
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, comparisons_per_client
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
from precad.norm_check.comparison_keys import (
    LEAST_BITS,
    MOST_BITS,
    TERMINATED,
    VERSION,
    gate_bytes,
    keys_bytes,
)
from precad.norm_check.norm_gates import submission_bytes

TASK = Task.load(ROOT / "deploy" / "task.toml")
DEADLINES = DeadlineSection()
PROJECTIONS = Task.model_fields["projections"]
VECTORS: dict[str, Any] = json.loads((ROOT / "tests/vectors/gates.json").read_text("utf-8"))


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
GATES = ROWS + 1
LEVELS = MOST_BITS - TERMINATED
HIDDEN = log2(100 * GATES * (LEVELS + 1))
"""Seeds of a batch of 100 submissions that one server doesn't know: on every level, and a root."""
SOUNDNESS, PROTOCOL, INPUT, ENROLMENT, SHARING = (
    "docs/soundness.md",
    "docs/protocol.md",
    "docs/hostile-input.md",
    "docs/enrolment.md",
    "docs/function-secret-sharing.md",
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
    (SHARING, r"mod 2\^n, n from (\d+) to 64", LEAST_BITS),
    (SHARING, r"mod 2\^n, n from 8 to (\d+)", MOST_BITS),
    (SHARING, r"on 64 bits has (\d+) levels", LEVELS),
    (SHARING, r"takes (\d+) bytes; to the last", gate_bytes()),
    # A root, 64 correction words, a control word and a value bit in a byte.
    (SHARING, r"it would be ([\d,]+)\.", 16 + 64 * 16 + 8 + 1),
    (SHARING, r"\| version \| (\d+) \|", VERSION),
    (SHARING, r"ends early \| (\d+) \|", TERMINATED),
    (SHARING, r"as expected: (\d+) for each submission", GATES),
    (SHARING, r"(\d+) bytes and 952 a gate", keys_bytes(0)),
    (SHARING, r"a gate: ([\d,]+) bytes for a submission alone", keys_bytes(GATES)),
    (SHARING, r"exchange (\d+) bytes a submission", submission_bytes(GATES)),
    (SHARING, r"submissions has 2\^([\d.]+) of them", round(HIDDEN, 1)),
    (SHARING, r"of them: 2\^−(\d+) for", round(126 - 80 - HIDDEN)),
    (SHARING, r"batches of (\d) gates on 64", len(VECTORS["good"][0]["gates"])),
    (SHARING, r"on 64 bits and (\d) on 8,", len(VECTORS["good"][1]["gates"])),
    (SHARING, r"and (\d+) changes of a key", len(VECTORS["bad"])),
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


@pytest.mark.parametrize("document", sorted({document for document, _, _ in NUMBERS}))
def test_numbers_in_a_document_are_the_codes(document: str) -> None:
    text = flat(ROOT / document)
    asked = [(pattern, value) for name, pattern, value in NUMBERS if name == document]
    found = [
        (pattern, {number(each) for each in re.findall(pattern, text)}) for pattern, _ in asked
    ]
    assert found == [(pattern, {value}) for pattern, value in asked]


def test_the_states_and_reasons_are_the_codes() -> None:
    states = section(PROTOCOL, "States of an attempt")
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
