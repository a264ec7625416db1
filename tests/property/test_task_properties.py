"""Whatever a task says, it is refused with words or reads back the same."""

import json
import math
import re
import tomllib
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import TaskMaker
from tests.rig.documents import Document

from precad.aggregator.store.summary import read_task
from precad.cli.local_deployment import to_toml
from precad.common.errors import Misconfiguration
from precad.common.mechanism import MAX_BOUND
from precad.common.proof_shape import P
from precad.common.task import MOST_DELTA, Task

positive = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
usual = st.floats(0.01, 30)
borders = st.sampled_from(
    [32.0 + 2**-19, 2.0**23]
    + [
        each
        for c in (0.25, 2.0**-30, 32.0, 2.0**24)
        for each in (math.nextafter(c, 0), c)
    ]
)  # Clips at which a number of bits more or fewer fits
rates = st.floats(0, 1, exclude_min=True)
names = st.text(min_size=1, max_size=8)


@st.composite
def values(draw: st.DrawFn, sizes: st.SearchStrategy[float] = positive) -> Document:
    shapes = draw(
        st.dictionaries(
            names, st.lists(st.integers(1, 50), min_size=1, max_size=3), min_size=1
        )
    )
    clip = draw(sizes)
    clients = draw(st.integers(1, 100_000))
    return {
        "name": draw(st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True)),
        "model": {"parameters": [{"name": n, "shape": s} for n, s in shapes.items()]},
        "privacy": (
            {
                "record_clip": clip * draw(st.floats(0.01, 1)) or clip,
                "client_clip": clip,
            }
            | {
                "noise_multiplier": draw(sizes),
                "record_rate": draw(rates),
                "client_rate": draw(rates),
            }
            | {"delta": draw(st.floats(0, MOST_DELTA, exclude_min=True))}
        ),
        "training": {
            "learning_rate": draw(positive),
            "rounds": draw(st.integers(1, 10**6)),
        },
        "enrolment": {"clients": clients, "max_expected_records": draw(positive)},
        "fractional_bits": draw(st.integers(1, 52)),
        "projections": draw(st.integers(40, 256)),
        "validation": draw(st.sampled_from(["crypten", "proof"])),
    }


@given(values())
def test_every_task_is_made_or_refused_by_a_known_field(data: Document) -> None:
    if refused := refusal_of(data):
        section, _, field = refused.field.partition(".")
        assert field in data[section] if field else section in data
        return
    task = Task.parse(data)
    # What headroom promises (docs/soundness.md, "Headroom").
    assert 1 <= task.mechanism.bound <= MAX_BOUND
    assert 14 * task.mechanism.bound * task.dimension < 2**63
    if task.proof is not None:
        # No true sum of a row that passes wraps, and rows can't be ground.
        assert 4 * 8 * task.mechanism.bound * task.dimension < P
        assert task.projections >= 100
    assert 1024 <= task.mechanism.noise_units < math.inf
    assert (
        task.enrolment.clients * task.mechanism.bound + 20 * task.mechanism.noise_units
        < 2**62
    )
    assert math.isfinite(task.mechanism.sensitivity_ratio)


@given(values(usual | borders), st.sampled_from([None, 1e4]))
def test_a_refusal_names_the_nearest_bits_that_do(
    data: Document, noise: float | None
) -> None:
    """At the borders noise may be enough for any number of bits."""
    data["privacy"]["noise_multiplier"] = noise or data["privacy"]["noise_multiplier"]
    refused = refusal_of(data)
    if refused is None or refused.field != "fractional_bits":
        return
    assert refused.value == data["fractional_bits"]
    found = re.search(r"(β|1024).*use at (least|most) (\d+)", refused.remedy)
    assert found, refused.remedy
    bits = int(found[3])
    assert 1 <= bits <= 52
    again = refusal_of(data | {"fractional_bits": bits})
    # Where no number of bits does it all, the next refusal is about something else.
    assert again is None or again.field != "fractional_bits"
    nearer = bits - 1 if found[2] == "least" else bits + 1
    assert refusal_of(data | {"fractional_bits": nearer}) is not None


def refusal_of(data: Document) -> Misconfiguration | None:
    try:
        Task.parse(data)
    except Misconfiguration as refused:
        return refused
    return None


@given(values(usual))
def test_the_canonical_form_reads_back_the_same(data: Document) -> None:
    data["fractional_bits"], data["privacy"]["noise_multiplier"] = 20, 1e3
    data["projections"] = max(100, data["projections"])
    task = Task.parse(data)
    again = read_task(task.canonical)
    assert (again, again.digest, again.canonical) == (task, task.digest, task.canonical)
    # And it is canonical: keys sorted, no space, in whatever order the values came.
    shuffled = {key: data[key] for key in reversed(data)}
    assert Task.parse(shuffled).digest == task.digest
    loaded = json.loads(task.canonical)
    assert (
        json.dumps(loaded, sort_keys=True, separators=(",", ":")).encode()
        == task.canonical
    )


CHANGES: tuple[tuple[str, object], ...] = (
    *(
        ("name", "other"),
        ("fractional_bits", 19),
        ("projections", 41),
        ("validation", "proof"),
    ),
    *(
        ("model.architecture", "mlp"),
        ("model.initial", "uniform"),
        ("model.initial_seed", 1),
    ),
    ("model.parameters", [{"name": "v", "shape": [8]}]),
    ("model.parameters", [{"name": "w", "shape": [4, 2]}]),
    ("privacy.record_clip", math.nextafter(1, 2)),
    ("privacy.client_clip", math.nextafter(20, 21)),
    ("privacy.noise_multiplier", math.nextafter(2, 3)),
    *(
        ("privacy.record_rate", 0.21),
        ("privacy.client_rate", 0.5),
        ("privacy.delta", 1e-6),
    ),
    *(("privacy.epsilon_limit", 4.0), ("privacy.cover_uploads", True)),
    *(
        ("training.learning_rate", 0.6),
        ("training.rounds", 11),
        ("training.attempts", 3),
    ),
    *(("enrolment.clients", 11), ("enrolment.min_clients", 2)),
    ("enrolment.max_expected_records", 101.0),
    ("enrolment.planned_units", 101),
    *((f"deadlines.{each}", 1.0) for each in ("enrol", "collect", "work", "rejoin")),
    *((f"deadlines.{each}", 1.0) for each in ("outage", "peer")),
)


def test_every_field_is_in_the_digest(make_task: TaskMaker) -> None:
    digests = [
        make_task().digest,
        *(make_task(8, {path: value}).digest for path, value in CHANGES),
    ]
    assert len(set(digests)) == len(CHANGES) + 1

    def leaves(values: Document, path: str = "") -> Iterator[str]:
        for key, value in values.items():
            nested = isinstance(value, dict)
            yield from leaves(value, f"{path}{key}.") if nested else (path + key,)

    planned = make_task(8, {"enrolment.planned_units": 5})
    assert set(leaves(json.loads(planned.canonical))) == {path for path, _ in CHANGES}
    # A task without a plan keeps the digest that it had before there could be one.
    assert b"planned_units" not in make_task().canonical


keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
"""Blanks, dots, quotes, emoji, control characters, and none at all."""
scalars = st.one_of(keys, st.booleans(), st.integers(), st.floats(allow_nan=False))
written = st.recursive(
    scalars,
    lambda one: st.one_of(
        st.lists(one, max_size=3), st.dictionaries(keys, one, max_size=3)
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(keys, written, max_size=5))
def test_whatever_is_written_as_toml_reads_back(document: Document) -> None:
    assert tomllib.loads(to_toml(document)) == document
