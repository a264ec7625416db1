"""`precad.simulate`: two paths that agree, parts to replace, results that say
simulated."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from research.checkpoint import Checkpoint
from tests.rig.documents import Document
from tests.rig.tasks import task_with
from torch import nn

import precad
from precad.accounting.adversaries import Adversary, Run
from precad.accounting.guarantees import guarantees
from precad.client.gradients.torch_models import build, logistic, mlp, model_section
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.fixed_point import squared_norm
from precad.common.model import initial_vector, load_model
from precad.common.roster import most_records
from precad.common.task import Task, with_objective
from precad.common.task_schema import ObjectiveSection
from precad.simulation import (
    SimulatedRound,
    SimulatedTraining,
    View,
    rounds,
    virtual_owners,
)
from precad.simulation.rounds import Draws
from precad.simulation.virtual_owners import Drawn, Owners, PerClient, Stacked

Data = tuple[NDArray[np.float32], NDArray[np.int64]]
FEATURES, CLASSES = 12, 3
UNITS_A_RECORD = 2
"""How far the two paths may lie apart in an element, for each record sampled; at f =
20."""
ALWAYS = {"privacy.client_rate": 1.0}


def small(changes: Document | None = None, section: Document | None = None) -> Task:
    """A task for records of 12 numbers and 3 classes, four owners at 2 of 3 rounds."""
    usual = {
        "model": section
        or model_section(logistic(FEATURES, CLASSES), architecture="logistic"),
        "training": {"learning_rate": 1.0, "rounds": 4},
        "enrolment.clients": 4,
        "privacy.client_clip": 4.0,
        "privacy.record_rate": 0.5,
        "privacy.client_rate": 0.7,
    }
    return task_with(usual | (changes or {}))


def no_noise(_server: object, _version: int, dimension: int) -> NDArray[np.int64]:
    return np.zeros(dimension, np.int64)


def every_record(
    _version: int, _client: object, count: int, _rate: float
) -> NDArray[np.int64]:
    return np.arange(count)


@pytest.fixture
def data() -> Data:
    rng = np.random.default_rng(3)
    labels = rng.integers(CLASSES, size=80)
    spread = rng.standard_normal((80, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[labels]
    return spread.astype(np.float32), labels


def net() -> nn.Module:
    """A small CNN, for records of 1·8·8 numbers."""
    seen = nn.Conv2d(1, 4, 3), nn.Tanh(), nn.GroupNorm(2, 4), nn.Flatten()
    return nn.Sequential(*seen, nn.Linear(144, CLASSES))


NETS: dict[str, Callable[[], nn.Module]] = {
    "logistic": partial(logistic, 64, CLASSES),
    "mlp": partial(mlp, 64, 8, CLASSES),
    "custom": net,
}


PSAC = {"name": "plain", "clipping": "psac"}


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize(
    ("clip", "objective"),
    [(4.0, None), (30.0, None), (30.0, {"name": "dp-gaussian"}), (4.0, PSAC)],
)
def test_stacked_updates_are_the_clients_to_two_units_a_record(
    kind: str, clip: float, objective: Document | None
) -> None:
    """An element's difference is at most 2 units of the last place for each sampled
    record."""
    rng = np.random.default_rng(11)
    module = NETS[kind]()
    task = small(
        {"privacy.client_clip": clip},
        model_section(module, architecture=kind, initial="uniform", initial_seed=5),
    )
    if objective is not None:
        task = with_objective(task, ObjectiveSection.model_validate(objective))
    shares = [
        (
            (3 * rng.standard_normal((n, 1, 8, 8))).astype(np.float32),
            rng.integers(CLASSES, size=n),
        )
        for n in (1, 7, 40, 130)
    ]
    owners, draws = Owners(shares, None, task, 0), Draws(task, 5)
    drawn = [
        Drawn(
            owner=owner,
            indices=draws.sample(
                version=0, client=name, count=len(owner.records), rate=0.5
            ),
            copies=draws.copies(0, name),
        )
        for name, owner in owners.items()
    ]
    theta, loss = initial_vector(task.model), nn.functional.cross_entropy
    exact = PerClient(module, loss, task).updates(theta, drawn)
    stacked = Stacked(module, loss, task, owners).updates(theta, drawn)
    assert exact.any()
    for one, mine, theirs in zip(drawn, exact, stacked, strict=True):
        assert np.abs(mine - theirs).max(initial=0) <= UNITS_A_RECORD * len(one.indices)
        assert squared_norm(theirs) <= task.mechanism.bound**2


def without_seconds(found: SimulatedTraining) -> tuple[list[SimulatedRound], bytes]:
    return [replace(each, seconds=0.0) for each in found.rounds], found.theta.tobytes()


def test_a_broken_off_simulation_goes_on_to_the_same_bits(
    data: Data, tmp_path: Path
) -> None:
    # Beyond the limit a client isn't drawn: what was counted before the break counts.
    task = small({"privacy.epsilon_limit": 6.0, "training.rounds": 45})
    kept = Checkpoint(tmp_path / "c")
    simulated = partial(precad.simulate, task, data, test=data, attack="flip")
    played: list[int] = []
    breaks = [9, 30]

    def told(shown: SimulatedRound, _theta: NDArray[np.float32]) -> None:
        played.append(shown.number)
        if shown.number in breaks:
            breaks.remove(shown.number)
            raise KeyboardInterrupt

    whole = simulated(seed=6)
    assert whole.rounds[29].cohort > whole.rounds[-1].cohort == 0
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            simulated(seed=6, on_round=told, checkpoint=kept)
    found = simulated(seed=6, on_round=told, checkpoint=kept)
    # Kept after each second round, once who looks on was told of it: 8 and 28.
    assert played == [*range(1, 10), *range(9, 31), *range(29, 46)]
    assert without_seconds(found) == without_seconds(whole)
    # A training that is over is there; another one's state isn't taken up.
    assert simulated(seed=6, checkpoint=kept).theta.tobytes() == whole.theta.tobytes()
    other = simulated(seed=7, checkpoint=kept)
    assert without_seconds(other) == without_seconds(simulated(seed=7))
    with pytest.raises(Misconfiguration, match="seed"):
        precad.simulate(task, data, checkpoint=kept)


def test_paths_blocks_and_chunks_change_nothing_that_counts(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    def both() -> list[SimulatedTraining]:
        return [
            precad.simulate(small(), data, seed=1, path=p)
            for p in ("per-client", "stacked")
        ]

    expected, stacked = both()
    # One client at a time, and four records.
    monkeypatch.setattr(rounds, "_BLOCK_BYTES", 1)
    monkeypatch.setattr(virtual_owners, "CHUNK_BYTES", 4 * 64 * small().dimension)
    one_by_one, in_chunks = both()
    # Bit for bit on the clients' own path; the last float32 bits may differ where
    # stacked.
    counted = attrgetter("cohort", "accepted", "records")
    for found, atol in ((stacked, 1e-5), (one_by_one, 0.0), (in_chunks, 1e-5)):
        assert [*map(counted, found.rounds)] == [*map(counted, expected.rounds)]
        np.testing.assert_allclose(found.theta, expected.theta, rtol=0, atol=atol)


def test_the_denominator_does_not_depend_on_who_takes_part(data: Data) -> None:
    simulated = partial(
        precad.simulate,
        small({"training.rounds": 1}),
        data,
        noise=no_noise,
        sampler=every_record,
    )
    everybody = simulated(seed=0, cohort=lambda _v, clients, _q: clients)
    alone = [
        simulated(seed=0, cohort=lambda *_, n=n: [f"client-{n}"]).theta
        for n in range(1, 5)
    ]
    np.testing.assert_allclose(everybody.theta, sum(alone), atol=1e-9)


def test_a_planned_denominator_scales_each_step_and_one_far_off_is_warned_of(
    data: Data,
) -> None:
    records = len(data[1])

    def simulated(planned: int) -> SimulatedTraining:
        task = small({"training.rounds": 1, "enrolment.planned_units": planned})
        return precad.simulate(task, data, seed=0, noise=no_noise, sampler=every_record)

    as_planned = simulated(records)
    off = simulated(3 * records)
    assert np.abs(as_planned.theta).max() > 0
    np.testing.assert_allclose(3 * off.theta, as_planned.theta, rtol=1e-6)
    assert as_planned.off_plan == ""
    assert f"planned_units = {3 * records}" in off.off_plan


def test_an_attack_beyond_the_bound_is_rejected_and_one_within_counts(
    data: Data,
) -> None:
    task = small(ALWAYS)
    seen: list[View] = []

    def attack(updates: NDArray[np.int64], view: View) -> NDArray[np.int64]:
        seen.append(view)
        forged = np.zeros_like(updates)
        forged[:, 0] = view.task.mechanism.bound + (view.version % 2)
        return forged

    found = precad.simulate(
        task, data, seed=0, attack=attack, attackers=["client-2", "client-4"]
    )
    counted = [(each.accepted, each.rejected) for each in found.rounds]
    assert counted == [(4, {}), (2, {"norm-exceeded": 2})] * 2
    assert [view.clients for view in seen] == [("client-2", "client-4")] * 4
    assert all(view.others.shape == (2, task.dimension) for view in seen)
    # An honest one was counted four times, a bad one twice.
    assert (found.rounds[-1].participations, found.attackers, found.replaced) == (
        4,
        2,
        (),
    )


def test_another_aggregation_takes_the_sums_place_and_no_epsilon_is_stated(
    data: Data,
) -> None:
    simulated = partial(precad.simulate, small(ALWAYS), data, seed=0)
    found = simulated(
        aggregate=lambda updates, _: np.median(updates, axis=0) * len(updates)
    )
    assert (found.replaced, found.epsilon(1), found.statements()) == (
        ("aggregate",),
        None,
        (),
    )
    assert "aggregate replaced" in str(found)
    total = simulated(aggregate=lambda updates, _: updates.sum(axis=0)).theta.tobytes()
    assert total == simulated().theta.tobytes() != found.theta.tobytes()


def test_a_named_objective_takes_the_place_of_the_tasks(data: Data) -> None:
    task = small(
        section=model_section(
            mlp(FEATURES, 8, CLASSES),
            architecture="mlp",
            initial="uniform",
            initial_seed=5,
        )
    )
    plain, *named = (
        precad.simulate(task, data, clients=3, rounds=2, seed=4, loss=one)
        for one in (
            None,
            "dp-gaussian",
            ObjectiveSection(name="dp-gaussian"),
            "dp-stability",
        )
    )
    assert named[0].task.objective == ObjectiveSection(name="dp-gaussian")
    assert (named[0].theta == named[1].theta).all()
    assert len({each.theta.tobytes() for each in (plain, named[0], named[2])}) == 3


def test_an_objective_of_ones_own_is_trained(data: Data) -> None:
    module, loss = nn.Linear(FEATURES, 1), nn.functional.mse_loss
    training = {"training": {"rounds": 20, "learning_rate": 2.0}}
    task = small(training, model_section(module, architecture="custom"))
    pairs = data[0], (data[0][:, :1] - data[0][:, 1:2]).astype(np.float32)
    simulated = partial(precad.simulate, task, pairs, module, seed=0, loss=loss)
    # Numbers have no accuracy, but a loss.
    tested = simulated(test=pairs)
    assert (tested.accuracy, tested.rounds[-1].loss is None) == (None, False)
    one, other, *others = simulated(noise=no_noise).weights["weight"][0]
    assert min(one, -other) > 0.3
    assert np.abs(others).max() < 0.2


def test_epsilons_are_the_accountants_and_a_limit_ends_a_clients_part(
    data: Data,
) -> None:
    found = precad.simulate(small(), data, seed=4)
    run = Run.of(found.task, rounds=4, participations=found.rounds[-1].participations)
    stated = {each.adversary: each.epsilon for each in found.statements()[::3]}
    assert found.statements() == guarantees(run, 1e-5)
    row, of = found.table()[-1], (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
    both = [row["epsilon_server"], row["epsilon_clients"]]
    assert both == pytest.approx([stated[each] for each in of], rel=1e-12)
    # The task's limit ends a client's part.
    always = ALWAYS | {"training.rounds": 8}
    spent = [
        row["epsilon_server"]
        for row in precad.simulate(small(always), data, seed=0).table()
    ]
    found = precad.simulate(
        small(always | {"privacy.epsilon_limit": spent[2]}), data, seed=0
    )
    assert [each.cohort for each in found.rounds] == [4] * 3 + [0] * 5
    assert found.table()[-1]["epsilon_server"] == spent[2]


class Poisoned(nn.Module):
    """Divides by zero for records that begin with 7, once the model has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gap = 1 - (x[:, :1] == 7).float() * (self.layer.bias[:1] != 0).float()
        out: torch.Tensor = self.layer(x) / gap
        return out


@pytest.mark.parametrize("path", ["stacked", "per-client"])
def test_a_bad_record_and_a_sample_beyond_the_padding_count_as_zero(
    data: Data, path: str
) -> None:
    task = small({"privacy.record_rate": 0.01, "enrolment.max_expected_records": 5.0})
    assert most_records(20, 0.01) < 20
    quiet: Document = {"sampler": every_record, "noise": no_noise}
    assert not precad.simulate(task, data, seed=0, path=path, **quiet).theta.any()

    data[0][::10, 0] = 7
    task = small(
        ALWAYS | {"privacy.record_rate": 1.0},
        model_section(Poisoned(), architecture="custom"),
    )
    found = precad.simulate(task, data, Poisoned(), seed=0, path=path)
    assert [each.failed for each in found.rounds] == [0, 8, 8, 8]
    assert np.isfinite(found.theta).all()


def test_a_result_says_that_it_is_simulated(data: Data, tmp_path: Path) -> None:
    found = precad.simulate(small(), data, seed=0, test=data)
    for text in (
        repr(found),
        str(found),
        SimulatedTraining.__name__,
        SimulatedRound.__name__,
    ):
        assert "simulated" in text.lower()
    assert all(row["simulated"] for row in found.table())
    found.save(tmp_path / "run.json")
    saved = json.loads((tmp_path / "run.json").read_text())
    assert (saved["simulated"], saved["seed"], saved["history"]) == (
        True,
        0,
        found.table(),
    )
    # What a certificate is made from is in no simulation.
    assert "certificate_inputs" not in saved
    found.plot(tmp_path / "run.svg")
    # Matplotlib draws letters as paths and leaves the text in comments.
    assert "SIMULATED" in (tmp_path / "run.svg").read_text(encoding="utf-8")
    # Its weights go into a module.
    weight = (
        found.load_into(build(found.task.model))
        .get_parameter("1.weight")
        .detach()
        .numpy()
    )
    np.testing.assert_array_equal(weight, found.weights["1.weight"].astype(np.float32))
    found.save_weights(tmp_path / "model.safetensors")
    with pytest.raises((Misconfiguration, TaskMismatch)):
        load_model(tmp_path / "model.safetensors", found.task)


BAD: dict[str, list[object]] = {
    "path": ["fast"],
    "seed": [-1, 1.5],
    "clients": [81, 0],
    "attackers": [2],
    "attack": [
        "unheard-of",
        lambda updates, _: updates[:, :1],
        lambda updates, _: updates * 1.0,
    ],
    "aggregate": [
        lambda updates, _: updates,
        lambda updates, _: updates.sum(axis=0) * np.nan,
    ],
    "noise": [lambda *_: np.zeros(3)],
    "sampler": [lambda *_: np.array([20]), lambda *_: np.array([0.5])],
    "cohort": [lambda *_: ["nobody"]],
    "absent": [lambda *_: ["nobody"]],
}


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        *((field, {field: value}) for field, values in BAD.items() for value in values),
        *(
            ("attackers", {"attack": "flip", "attackers": each})
            for each in (5, ["nobody"])
        ),
        ("training.rounds", {"rounds": 0}),
    ],
)
def test_what_cannot_be_simulated_is_named(
    data: Data, field: str, changes: Document
) -> None:
    with pytest.raises(Misconfiguration) as refused:
        precad.simulate(small(ALWAYS), data, **(Document(seed=0) | changes))
    assert refused.value.field == field


def test_what_a_real_run_refuses_is_refused_and_other_data_are_dealt_out_whole(
    data: Data,
) -> None:
    (x, y), capped = data, small({"enrolment.max_expected_records": 1.0})
    for words, arguments in (
        ("max_expected_records", (capped, data)),
        ("labels must be from 0 to 2", (small(), (x, y + 5))),
        ("must be finite", (small(), (x * np.float32(np.nan), y))),
        ("model parameter", (small(), data, nn.Linear(3, 3))),
    ):
        with pytest.raises(Misconfiguration, match=words):
            precad.simulate(*arguments)
    # Data are dealt out whole.
    owners = Owners(as_records(data), 7, small(), 3).values()
    dealt = [as_records(owner.records) for owner in owners]
    rows = np.concatenate([records.inputs.numpy() for records in dealt])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, x.tolist()))
