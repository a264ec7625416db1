"""A unit beside the record, such as a patient: what an owner reads, draws and adds.

A search tries to move an owner's sum by more than R through one patient, and work is
counted in kernels and clipped vectors.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings, target
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from tests.rig.tasks import data_owner, task_with
from torch import nn
from torch.nn.functional import cross_entropy

from precad.accounting.adversaries import Run
from precad.accounting.guarantees import guarantees
from precad.client.account_file import ACCOUNT_FILE
from precad.client.data_set_account import Account
from precad.client.gradients import local_update as updating
from precad.client.gradients import record_gradients
from precad.client.gradients.local_update import local_update
from precad.client.gradients.torch_models import model_section
from precad.client.own_account import OwnAccount
from precad.client.participation import Observer, RoundView
from precad.client.records.columns import Columns
from precad.client.records.torch_records import Records, records_in_task
from precad.client.records.units import Units
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.fixed_point import squared_norm
from precad.common.identifiers import ClientId, Digest, Secret
from precad.common.mechanism import Unit
from precad.common.ring import Keystream, RingVector
from precad.common.roster import most_records
from precad.common.task import Task
from precad.simulation import simulate

MODEL = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
MOST = 3
"""L."""
BITS = 19


def patients(**changes: Any) -> Task:
    return task_with(
        {
            "model": model_section(MODEL, architecture="custom"),
            "privacy.unit": "patient",
            "privacy.most_records_per_unit": MOST,
            "privacy.record_clip": 1.0,
            "privacy.client_clip": 60.0,
            "fractional_bits": BITS,
        }
        | changes
    )


TASK = patients()
RECORDS = task_with({"model": model_section(MODEL, architecture="custom")})
THETA = np.random.default_rng(12).normal(0, 0.5, TASK.dimension)


def stream(number: int = 0) -> Keystream:
    return Keystream(Secret(number.to_bytes(32, "little")), "test")


def records(count: int, scale: float = 3.0) -> tuple[Any, Any]:
    generator = np.random.default_rng(11)
    x = generator.normal(0, scale, (count, 5)).astype(np.float32)
    return x, generator.integers(0, 3, count)


# --- which records are one


@pytest.mark.parametrize(
    ("identifiers", "units"),
    [
        (["2", 2.0, 2, "2.0", " 2 "], 1),
        (["Zoe\u0308", "Zoë", "Zoe"], 2),
        (np.array([7, 8, 7]), 2),
        (np.array([1.5, 1.5, 2.5], np.float32), 2),
        (["007", "7"], 2),
        ([True, "true", "TRUE"], 1),
        (torch.tensor([3, 3, 4]), 2),
    ],
)
def test_identifiers_are_compared_as_levels_are(
    identifiers: ArrayLike, units: int
) -> None:
    x, y = records(len(identifiers))  # type: ignore[arg-type]
    assert records_in_task((x, y), TASK, units=identifiers).unit_count == units
    assert records_in_task((x, y, identifiers), TASK).unit_count == units


@pytest.mark.parametrize("missing", ["", "NA", None, float("nan")])
def test_a_missing_identifier_is_refused_with_its_record(missing: object) -> None:
    data = records(3)
    with pytest.raises(Misconfiguration) as refused:
        records_in_task(data, TASK, units=["a", missing, "b"])
    assert refused.value.field == "data, column units, record 1"
    assert "mend it or leave the record out" in refused.value.remedy


def test_an_identifier_that_may_have_been_rounded_is_refused() -> None:
    with pytest.raises(Misconfiguration, match=r"record 0 = '…': .*rounded"):
        records_in_task(records(2), TASK, units=[2.0**53, 2.0**53 + 2])
    large = [2**53, 2**53 + 1]
    assert records_in_task(records(2), TASK, units=large).unit_count == 2


def table(path: Path, identifiers: list[str]) -> Path:
    lines = ["a,b,c,d,e,label,patient_id"]
    x, y = records(len(identifiers))
    for row, label, identifier in zip(x, y, identifiers, strict=True):
        lines.append(",".join([*map(str, row), str(label), identifier]))
    path.write_text("\n".join(lines) + "\n")
    return path


COLUMNS = Columns(inputs=tuple("abcde"), target="label", unit="patient_id")


def test_a_tables_column_and_a_files_array_say_whose_each_record_is(
    tmp_path: Path,
) -> None:
    path = table(tmp_path / "ward.csv", ["12", "12.0", "13", "12"])
    found = records_in_task(path, TASK, COLUMNS)
    assert found.units is not None
    assert found.units.of_record.tolist() == [0, 0, 1, 0]
    x, y = records(4)
    np.savez(tmp_path / "ward.npz", x=x, y=y, units=[5, 6, 6, 5])
    found = records_in_task(tmp_path / "ward.npz", TASK)
    assert (len(found), found.unit_count) == (4, 2)
    hurt = table(tmp_path / "hurt.csv", ["1", "", "2"])
    with pytest.raises(Misconfiguration) as refused:
        records_in_task(hurt, TASK, COLUMNS)
    place = f"record 1 (line 3 of {hurt})"
    assert refused.value.field == f"data, column patient_id, {place}"


def test_a_task_with_a_unit_needs_a_column_and_another_task_refuses_one(
    tmp_path: Path,
) -> None:
    path = table(tmp_path / "ward.csv", ["1", "1", "2"])
    unnamed = COLUMNS.model_copy(update={"unit": None})
    for data, columns in ((path, unnamed), (records(3), None)):
        with pytest.raises(Misconfiguration, match="protects a patient") as refused:
            records_in_task(data, TASK, columns)
        assert refused.value.field == "columns.unit"
    x, y = records(3)
    np.savez(tmp_path / "ward.npz", x=x, y=y)
    with pytest.raises(Misconfiguration, match="no array units"):
        records_in_task(tmp_path / "ward.npz", TASK)
    with pytest.raises(Misconfiguration, match="protects a record"):
        records_in_task(path, RECORDS, COLUMNS)
    with pytest.raises(Misconfiguration, match="protects a record"):
        records_in_task((x, y, [1, 1, 2]), RECORDS)
    with pytest.raises(Misconfiguration, match="protects a record"):
        data_owner("ward-1", RECORDS, (x, y), model=MODEL, units=[1, 2, 3])
    with pytest.raises(Misconfiguration, match="one identifier for each record"):
        records_in_task((x, y), TASK, units=[1, 2])


def test_no_unit_stands_on_both_sides_of_held_out_records() -> None:
    x, y = records(6)
    own = {"units": [1, 1, 2, 2, 3, 3], "held_out": (x[:2], y[:2])}
    with pytest.raises(Misconfiguration) as refused:
        data_owner("ward-1", TASK, (x, y), model=MODEL, held_out_units=[9, 3.0], **own)
    shown = (refused.value.field, refused.value.value)
    # Whose it is stays out of what may be sent to others.
    assert shown == ("held_out, record 1", "…")
    owner = data_owner(
        "ward-1", TASK, (x, y), model=MODEL, held_out_units=[9, 8], **own
    )
    assert owner._records.unit_count == 3


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"privacy.most_records_per_unit": None}, "privacy.most_records_per_unit"),
        ({"privacy.unit": None}, "privacy.most_records_per_unit"),
        ({"privacy.unit": "record"}, "privacy.unit"),
        ({"privacy.unit": "owner"}, "privacy.unit"),
        ({"privacy.unit": "Two words"}, "privacy.unit"),
        ({"privacy.most_records_per_unit": 0}, "privacy.most_records_per_unit"),
    ],
)
def test_a_tasks_unit_has_a_name_and_a_most(
    changes: dict[str, object], field: str
) -> None:
    with pytest.raises(Misconfiguration) as refused:
        patients(**changes)
    assert refused.value.field == field


def test_the_unit_is_in_the_digest_and_a_task_without_one_keeps_its_own() -> None:
    assert b"unit" not in RECORDS.canonical.replace(b"planned_units", b"")
    other = patients(**{"privacy.most_records_per_unit": MOST + 1})
    assert len({TASK.digest, other.digest, RECORDS.digest}) == 3
    assert Task.parse(TASK.model_dump(mode="json")).digest == TASK.digest


# --- what is drawn


def test_all_sets_of_a_units_records_are_drawn_alike_often() -> None:
    units = Units(["a", "b", "a", "c", "a", "a"])
    seen: dict[tuple[int, ...], int] = {}
    for number in range(3000):
        drawn, sizes = units.draw(np.array([0, 2]), 2, stream(number))
        assert sizes.tolist() == [2, 1]
        assert drawn[2] == 3
        pair = tuple(sorted(drawn[:2].tolist()))
        seen[pair] = seen.get(pair, 0) + 1
    assert sorted(seen) == [(0, 2), (0, 4), (0, 5), (2, 4), (2, 5), (4, 5)]
    # 500 each on average, 20.4 the standard deviation.
    assert all(400 < times < 600 for times in seen.values())


def test_drawing_takes_as_many_random_bytes_whatever_is_drawn() -> None:
    units = Units(list("aabbbbc"))
    next_words = []
    for sampled in ([], [0], [0, 1, 2]):
        randomness = stream()
        units.draw(np.array(sampled, np.int64), 2, randomness)
        next_words.append(randomness.words(1)[0])
    assert len(set(next_words)) == 1


# --- what is added


def update(
    indices: ArrayLike,
    sizes: ArrayLike,
    *,
    task: Task = TASK,
    scale: float = 3.0,
    chunk: int | None = None,
    most: int | None = None,
    labels: NDArray[np.int64] | None = None,
) -> RingVector:
    x, y = records(60, scale)
    return local_update(
        MODEL,
        cross_entropy,
        (x, y if labels is None else labels),
        np.array(indices, np.int64),
        THETA,
        task,
        sizes=np.array(sizes, np.int64),
        chunk=chunk,
        most=most,
    )


def test_a_unit_adds_the_clipped_mean_of_its_drawn_records() -> None:
    sizes = [3, 1, 2, 3]
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(THETA), model.parameters())
    x, y = records(60)
    expected = np.zeros(TASK.dimension)
    start = 0
    for size in sizes:
        total = np.zeros(TASK.dimension)
        for record in range(start, start + size):
            model.zero_grad()
            inputs = torch.from_numpy(x[record : record + 1]).double()
            cross_entropy(model(inputs), torch.tensor([y[record]])).backward()  # type: ignore[no-untyped-call]
            total += torch.cat(
                [p.grad.ravel() for p in model.parameters() if p.grad is not None]
            ).numpy()
        mean = total / size
        expected -= mean * min(1.0, 1.0 / float(np.linalg.norm(mean)))
        start += size
    found = update(range(start), sizes) / 2.0**BITS
    np.testing.assert_allclose(found, expected, atol=1e-4)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, MOST), min_size=1, max_size=12), st.integers(1, 40))
def test_a_mean_depends_neither_on_where_chunks_end_nor_on_padding(
    sizes: list[int], chunk: int
) -> None:
    alone = update(range(sum(sizes)), sizes, chunk=1)
    assert (update(range(sum(sizes)), sizes, chunk=chunk) == alone).all()
    padded = update(range(sum(sizes)), sizes, chunk=chunk, most=len(sizes) + 3)
    assert (padded == alone).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, MOST), min_size=1, max_size=12),
    st.sampled_from([0.05, 3.0, 50.0, 1e30]),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.data(),
)
def test_no_unit_moves_the_sum_by_more_than_r(
    sizes: list[int],
    scale: float,
    clip: float,
    draw: st.DataObject,
) -> None:
    """A search for one that does: all its records alike, huge, or of bad labels."""
    task = patients(**{"privacy.record_clip": clip})
    unit = draw.draw(st.integers(0, len(sizes) - 1))
    starts = np.cumsum([0, *sizes])
    own = range(int(starts[unit]), int(starts[unit + 1]))
    _, labels = records(60, scale)
    if draw.draw(st.booleans()):
        labels[:] = 0
    bad = draw.draw(st.sets(st.sampled_from(own)))
    labels[list(bad)] = 99
    everybody = np.arange(starts[-1])
    same = np.full(len(own), own[0])
    if draw.draw(st.booleans()):
        everybody[own.start : own.stop] = same
    others = np.delete(everybody, list(own))
    kwargs: dict[str, Any] = {"task": task, "scale": scale, "labels": labels}
    whole = update(everybody, sizes, **kwargs)
    sizes_of_others = np.delete(sizes, unit)
    without = update(others, sizes_of_others, **kwargs)
    moved = squared_norm(whole - without)
    bound = clip * 2.0**BITS
    target(moved / bound**2)
    assert moved <= bound**2


def test_units_without_sizes_and_sizes_without_units_are_refused() -> None:
    """The first would add each of a person's records, clipped to R by itself."""
    for task, sizes in ((TASK, None), (RECORDS, np.array([2]))):
        with pytest.raises(Misconfiguration, match="sizes"):
            local_update(
                MODEL,
                cross_entropy,
                records(4),
                np.array([0, 1]),
                THETA,
                task,
                sizes=sizes,
            )


# --- what shows


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Slots of each kernel that runs, and rows of each block that is clipped."""
    seen: dict[str, list[int]] = {"kernels": [], "clipped": []}
    kernel = record_gradients.RecordGradients.kernel
    clip = updating.clip_record

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        rows = kernel(self, *args, **kwargs)
        seen["kernels"].append(len(rows))
        return rows

    def clipped(gradients: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
        seen["clipped"].append(len(gradients))
        return clip(gradients, task)

    monkeypatch.setattr(record_gradients.RecordGradients, "kernel", counted)
    monkeypatch.setattr(updating, "clip_record", clipped)
    return seen


UNITS = 24
VIEW = RoundView(attempt=3, theta=THETA, model=Digest(bytes(32)))


@pytest.mark.parametrize("records_each", [1, 2, 7, 30])
def test_how_many_records_persons_have_changes_no_step_of_the_work(
    records_each: int, work: dict[str, list[int]]
) -> None:
    """Nor does which of them are drawn, nor that one has many and others one."""
    rate = TASK.mechanism.unit_rate
    most = most_records(UNITS, rate)
    claims = set()
    for identifiers in (
        np.repeat(np.arange(UNITS), records_each),
        np.concatenate([np.arange(UNITS), np.zeros(records_each - 1, np.int64)]),
    ):
        x, y = records(len(identifiers))
        owner = data_owner("ward-1", TASK, (x, y), model=MODEL, units=identifiers)
        claims.add(owner._records.unit_count)
        for covering in (False, False, True):
            work["kernels"].clear()
            work["clipped"].clear()
            found = owner.update(replace(VIEW, covering=covering))
            assert found.shape == (TASK.dimension,)
            # As with one record each: M·L slots, and M vectors that are clipped.
            slots = sum(work["kernels"])
            assert MOST * most <= slots < MOST * most + work["kernels"][0]
            assert len(set(work["kernels"])) == 1
            assert work["clipped"] == [1] * most
    assert claims == {UNITS}


def test_what_an_owner_claims_is_its_persons() -> None:
    """|D_i| at both servers, and so the caps and β_i."""
    task = patients(**{"privacy.client_clip": {"per_record": 1.0, "most": 60.0}})
    identifiers = np.repeat(np.arange(UNITS), 5)
    x, y = records(len(identifiers))
    owner = data_owner("ward-1", task, (x, y), model=MODEL, units=identifiers)
    rate = task.mechanism.unit_rate
    beta = int(max(1, UNITS * rate) * 2**BITS)
    assert abs(owner._bound - beta) <= 1
    claimed: list[object] = []

    class Called(Exception):
        pass

    class Servers:
        def __init__(self, *args: object, **kwargs: object) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def check_task(self) -> None:
            pass

        def enrol(self, *claim: object) -> None:
            claimed.extend(claim)
            raise Called

    with pytest.raises(Called):
        owner._take_part(Observer(), connection=Servers)  # type: ignore[arg-type]
    assert claimed == [UNITS, rate, None]


# --- accounts


def test_an_account_counts_one_kind_of_unit(tmp_path: Path) -> None:
    """ε of a record and ε of a patient don't add up to anything."""
    path = tmp_path / ACCOUNT_FILE
    client = ClientId("ward-1")
    own = OwnAccount(TASK, TASK.mechanism.unit_rate, None, path, client)
    own.charge(0)
    spent = own.epsilon()
    assert " patient " in path.read_text()
    again = OwnAccount(TASK, TASK.mechanism.unit_rate, None, path, client)
    assert (again.participations, again.epsilon()) == (1, spent)
    # A task that began beside it, before anything was charged, charges nothing either.
    beside = replace(
        again._charge(1, 0), task=RECORDS.digest, unit=Unit.RECORD, client="ward-1"
    )
    with pytest.raises(BudgetExceeded):
        Account(path).add(beside)
    with pytest.raises(Misconfiguration, match="tasks of one unit alone"):
        OwnAccount(RECORDS, RECORDS.mechanism.unit_rate, None, path, client)
    other = tmp_path / "records.log"
    OwnAccount(RECORDS, RECORDS.mechanism.unit_rate, None, other, client).charge(0)
    # As files have been: nothing more stands in a record's line.
    assert other.read_text().startswith("charge3 ")
    with pytest.raises(Misconfiguration, match="protect a record"):
        OwnAccount(TASK, TASK.mechanism.unit_rate, None, other, client)


def test_runs_of_different_units_have_no_epsilon_together() -> None:
    both = [Run.of(TASK), Run.of(RECORDS)]
    with pytest.raises(Misconfiguration, match="protect different things"):
        guarantees(both, 1e-5)
    (first, *_) = guarantees([Run.of(TASK)] * 2, 1e-5)
    assert (first.unit, first.adversary.adjacency(first.unit)) == (
        "patient",
        "zero-out-patient",
    )


def test_a_unit_is_named_with_its_article() -> None:
    assert [Unit(name).one for name in ("record", "owner", "patient", "inmate")] == [
        "a record",
        "an owner",
        "a patient",
        "an inmate",
    ]


# --- simulation


def test_a_simulated_owner_draws_clips_and_claims_units() -> None:
    identifiers = np.repeat(np.arange(40), 5)
    x, y = records(200)
    task = patients(
        **{"enrolment.clients": 2, "privacy.client_rate": 1.0, "training.rounds": 2}
    )
    played = simulate(task, (x, y, identifiers), MODEL, seed=3)
    assert (played.path, played.largest) == ("per-client", 20)
    assert "of a patient against" in str(played)
    again = simulate(task, (x, y, identifiers), MODEL, seed=3)
    assert (played.theta == again.theta).all()
    # All of a unit go to one owner.
    assert played.rounds[0].records <= MOST * 40
    with pytest.raises(Misconfiguration, match="protects a patient"):
        simulate(task, (x, y), MODEL, seed=3)
    test = (x[:3], y[:3], identifiers[:3])
    with pytest.raises(Misconfiguration, match="has records in data too"):
        simulate(task, (x, y, identifiers), MODEL, seed=3, test=test)


def test_records_are_copied_with_their_units() -> None:
    whole = Records(*records(4), ["a", "b", "a", "c"])
    part = whole.of_units(np.array([0, 2]))
    assert part.units is not None
    assert part.units.identifiers == ("a", "c")
    assert part.units.of_record.tolist() == [0, 0, 1]
