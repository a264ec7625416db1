"""The task: what is refused, and with which words."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TaskMaker

from precad.accounting.adversaries import client_noise_multiplier, sensitivity_ratio
from precad.common.errors import Misconfiguration
from precad.common.task import Task, effective_record_clip

SECTIONS = ("", "privacy.")


def refusal(make_task: TaskMaker, changes: dict[str, Any], dimension: int = 8) -> Misconfiguration:
    with pytest.raises(Misconfiguration) as refused:
        make_task(dimension, changes)
    return refused.value


def test_derived_quantities(make_task: TaskMaker) -> None:
    task = make_task(9, {"privacy.client_clip": 30.1})
    assert task.bound == math.floor(30.1 * 2**20)
    assert task.effective_record_clip == 1 + 3 * 2.0**-20 + 30.1 * 2.0**-18
    assert task.noise_units == pytest.approx(2 * (2**20 + 3 + 30.1 * 4))
    assert task.sensitivity_ratio == task.effective_record_clip / 30.1
    assert client_noise_multiplier(2, task.sensitivity_ratio) == pytest.approx(
        math.sqrt(2) * 2 * task.effective_record_clip / 30.1
    )


# --- headroom: each rule with field, value, and what would fit ---------------------------------


@pytest.mark.parametrize("clip", [2.0**24 + 0.5, 1e10, 1e300, 1.7e308])
def test_a_client_clip_too_large_for_any_bits_is_named_itself(
    make_task: TaskMaker, clip: float
) -> None:
    refused = refusal(make_task, {"privacy.client_clip": clip})
    assert (refused.field, refused.value) == ("privacy.client_clip", clip)
    fits = {
        "privacy.client_clip": 2.0**24,
        "privacy.record_clip": 2.0**14,
        "fractional_bits": 1,
        "privacy.noise_multiplier": 1e4,
    }
    assert "2^24" in refused.remedy
    make_task(8, fits)


def test_too_many_parameters_say_how_many_fit(make_task: TaskMaker) -> None:
    bound = 20 * 2**20
    most = (2**63 - 1) // (14 * bound)
    refused = refusal(make_task, {}, dimension=most + 1)
    assert (refused.field, refused.value) == ("model.parameters", f"d = {most + 1}")
    assert f"at most d = {most}" in refused.remedy
    assert make_task(most).dimension == most


def test_too_little_noise_that_no_bits_can_mend_names_the_multiplier(make_task: TaskMaker) -> None:
    """More bits would lift β above 2^25: the remedy must not send the reader round in circles."""
    changes = {"privacy.client_clip": 32.0, "privacy.noise_multiplier": 1e-4}
    refused = refusal(make_task, changes)
    assert (refused.field, refused.value) == ("privacy.noise_multiplier", 1e-4)
    found = re.search(r"at least ([0-9.e-]+)", refused.remedy)
    assert found
    assert make_task(8, changes | {"privacy.noise_multiplier": float(found[1])})


@pytest.mark.parametrize("sigma", [1.1e10, 1e12, 1e300])
def test_noise_that_leaves_no_room_says_how_much_fits(make_task: TaskMaker, sigma: float) -> None:
    changes = {"privacy.record_clip": 20.0}
    refused = refusal(make_task, changes | {"privacy.noise_multiplier": sigma})
    assert (refused.field, refused.value) == ("privacy.noise_multiplier", sigma)
    assert "2^62" in refused.remedy
    found = re.search(r"at most ([0-9.e]+)$", refused.remedy)
    assert found
    most = float(found[1])
    make_task(8, changes | {"privacy.noise_multiplier": most})
    refusal(make_task, changes | {"privacy.noise_multiplier": most * 1.01})


CLIP = 20.0 / 1024


@pytest.mark.parametrize(
    ("fits", "refused", "field", "value", "remedy"),
    [
        (
            {"privacy.record_clip": 20.0},
            {"privacy.record_clip": 20.5},
            *("privacy.record_clip", 20.5, "20.0"),
        ),
        (
            {"privacy.record_clip": CLIP},
            {"privacy.record_clip": math.nextafter(CLIP, 0)},
            *("privacy.client_clip", 20.0, "1024·privacy.record_clip = 20"),
        ),
        (
            {"enrolment.min_clients": 10},
            {"enrolment.min_clients": 11},
            *("enrolment.min_clients", 11, "enrolment.clients = 10"),
        ),
        # Otherwise everybody would be late for ever.
        (
            {"deadlines.collect": 5.0, "deadlines.work": 4.9},
            {"deadlines.collect": 5.0, "deadlines.work": 5.0},
            *("deadlines.work", 5.0, "below deadlines.collect"),
        ),
    ],
)
def test_two_values_that_contradict_each_other_are_refused(
    make_task: TaskMaker,
    fits: dict[str, Any],
    refused: dict[str, Any],
    field: str,
    value: float,
    remedy: str,
) -> None:
    make_task(8, fits)
    found = refusal(make_task, refused)
    assert (found.field, found.value) == (field, value)
    assert remedy in found.remedy


# --- plain values ------------------------------------------------------------------------------


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_keys_are_refused_by_name(make_task: TaskMaker, section: str) -> None:
    refused = refusal(make_task, {f"{section}nosie": 1})
    assert refused.field == f"{section}nosie"
    assert "unknown key" in refused.remedy


@pytest.mark.parametrize(
    "field",
    [
        "name",
        "model.parameters",
        "privacy.noise_multiplier",
        "training.rounds",
        "enrolment.max_expected_records",
    ],
)
def test_what_has_no_sound_default_is_required(field: str) -> None:
    assert Task.parse(tomllib.loads(TOML))
    last = field.rsplit(".", maxsplit=1)[-1]
    without = re.sub(rf"^{last} = .*$", "", TOML, flags=re.MULTILINE)
    with pytest.raises(Misconfiguration) as refused:
        Task.parse(tomllib.loads(without))
    assert refused.value.field == field
    assert "required" in refused.value.remedy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("privacy.record_clip", math.nan),
        ("privacy.client_clip", "30"),
        ("privacy.noise_multiplier", 0.0),
        ("privacy.record_rate", 0.0),
        ("training.rounds", 2.0),
        ("enrolment.clients", 0),
        ("fractional_bits", 53),
        ("projections", 39),
        ("name", "ok\n"),
        ("model.initial", "normal"),
        ("model.parameters.0.shape", [0]),
        ("model.parameters.0.name", ""),
    ],
)
def test_values_out_of_range_are_refused_by_field(
    make_task: TaskMaker, field: str, value: Any
) -> None:
    path, given = field, value
    if field.startswith("model.parameters.0"):
        key = field.rsplit(".", maxsplit=1)[-1]
        path, given = "model.parameters", [{"name": "w", "shape": [8]} | {key: value}]
    refused = refusal(make_task, {path: given})
    assert refused.field.startswith(field)


def test_two_parameters_of_one_name_are_refused(make_task: TaskMaker) -> None:
    """They would be one tensor in the model's file."""
    twice = [{"name": "w", "shape": [3]}, {"name": "w", "shape": [5]}]
    refused = refusal(make_task, {"model.parameters": twice})
    assert (refused.field, refused.value) == ("model.parameters", "w")


# --- reading -----------------------------------------------------------------------------------


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    with pytest.raises(Misconfiguration, match=r"task\.toml"):
        Task.load(path)
    path.write_text(TOML, encoding="utf-16")
    with pytest.raises(Misconfiguration, match="isn't UTF-8 text: save it as UTF-8"):
        Task.load(path)
    path.write_text(TOML, encoding="utf-8")
    assert Task.load(path) == Task.parse(tomllib.loads(TOML))


TOML = """\
name = "ward-study"
fractional_bits = 20

[model]
architecture = "logistic"
parameters = [{ name = "weight", shape = [10, 64] }, { name = "bias", shape = [10] }]

[privacy]
record_clip = 1.0
client_clip = 20.0
noise_multiplier = 2.0
record_rate = 0.2
client_rate = 1.0

[training]
learning_rate = 6.0
rounds = 60

[enrolment]
clients = 10
max_expected_records = 60.0
"""


def test_sensitivity_includes_the_rounding() -> None:
    rounding = 650**0.5 / 65536 + 4 / 2**18
    assert effective_record_clip(1.0, 4.0, 650, 16) == pytest.approx(1 + rounding)
    assert sensitivity_ratio(1.0, 4.0, 650, 16) == effective_record_clip(1.0, 4.0, 650, 16) / 4
    for bad in ((0.0, 4.0, 650, 16), (1.0, 0.0, 650, 16), (1.0, 4.0, 0, 16), (1.0, 4.0, 650, -1)):
        with pytest.raises(Misconfiguration):
            sensitivity_ratio(*bad)
