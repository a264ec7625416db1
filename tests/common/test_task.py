"""The task: what is refused, and with which words.

Any values: property/test_task_properties.py.
"""

import math
import re
from functools import partial

import pytest
from tests.conftest import task_values
from tests.rig.refusals import refused
from tests.rig.tasks import task_with

from precad.accounting.adversaries import client_noise_multiplier, sensitivity_ratio
from precad.common.errors import Misconfiguration
from precad.common.task import Task

refusal = partial(refused, ".", task_with)


def test_derived_quantities_include_the_rounding() -> None:
    task = task_with({"privacy.client_clip": 30.1}, 9)
    mechanism = task.mechanism
    assert mechanism.bound == math.floor(30.1 * 2**20)
    assert mechanism.sensitivity == 1 + 3 * 2.0**-20 + 30.1 * 2.0**-18
    assert mechanism.noise_units == pytest.approx(2 * (2**20 + 3 + 30.1 * 4))
    assert mechanism.sensitivity_ratio == mechanism.sensitivity / 30.1
    assert client_noise_multiplier(2, mechanism.sensitivity_ratio) == pytest.approx(
        math.sqrt(2) * 2 * mechanism.sensitivity / 30.1
    )
    assert sensitivity_ratio(
        record_clip=1.0, client_clip=4.0, dimension=650, fractional_bits=16
    ) == pytest.approx((1 + 650**0.5 / 65536 + 4 / 2**18) / 4)
    for bad in (
        (0.0, 4.0, 650, 16),
        (1.0, 0.0, 650, 16),
        (1.0, 4.0, 0, 16),
        (1.0, 4.0, 650, -1),
    ):
        with pytest.raises(Misconfiguration):
            sensitivity_ratio(
                record_clip=bad[0],
                client_clip=bad[1],
                dimension=bad[2],
                fractional_bits=bad[3],
            )


def test_a_task_of_a_newer_release_is_refused_by_what_is_new_in_it() -> None:
    says = r"training\.least_heard = 2: unknown key; .*install a precad that knows it"
    refused(says, task_with, {"training.least_heard": 2})


CLIP, NOISE, RECORD = (
    "privacy.client_clip",
    "privacy.noise_multiplier",
    "privacy.record_clip",
)
MOST = (2**63 - 1) // (14 * 20 * 2**20)


def test_what_leaves_no_room_is_named_with_what_fits() -> None:
    values: list[tuple[dict[str, float], int, str, str]] = [
        *(
            ({CLIP: clip}, 8, CLIP, r"2\^24")
            for clip in (2.0**24 + 0.5, 1e10, 1e300, 1.7e308)
        ),
        ({}, MOST + 1, "model.parameters", f"at most d = {MOST}"),
        # More bits would lift β above 2^25: the remedy must not send the reader round
        # in circles.
        ({CLIP: 32.0, NOISE: 1e-4}, 8, NOISE, "at least ([0-9.e-]+)"),
        *(
            ({RECORD: 20.0, NOISE: sigma}, 8, NOISE, r"2\^62.*at most ([0-9.e]+)$")
            for sigma in (1.1e10, 1e12, 1e300)
        ),
    ]
    for changes, dimension, field, remedy in values:
        error = refusal(changes, dimension)
        said = changes.get(field, f"d = {dimension}")
        assert (error.field, error.value) == (field, said)
        found = re.search(remedy, error.remedy)
        assert found, error
        if field == NOISE:
            fits = float(found[1])
            task_with(changes | {NOISE: fits})
            if RECORD in changes:
                refusal(changes | {NOISE: fits * 1.01})
    task_with({CLIP: 2.0**24, RECORD: 2.0**14, "fractional_bits": 1, NOISE: 1e4})
    assert task_with({}, MOST).dimension == MOST


LEAST = 20.0 / 1024


def test_two_values_that_contradict_each_other_are_refused() -> None:
    for field, fits, too_much, named, remedy in (
        (RECORD, 20.0, 20.5, RECORD, "20.0"),
        (
            RECORD,
            LEAST,
            math.nextafter(LEAST, 0),
            CLIP,
            "1024·privacy.record_clip = 20",
        ),
        (
            "enrolment.min_clients",
            10,
            11,
            "enrolment.min_clients",
            "enrolment.clients = 10",
        ),
        # Otherwise everybody would be late for ever.
        ("deadlines.work", 4.9, 5.0, "deadlines.work", "below deadlines.collect"),
    ):
        task_with({"deadlines.collect": 5.0, field: fits})
        found = refusal({"deadlines.collect": 5.0, CLIP: 20.0, field: too_much})
        assert (found.field, found.value) == (
            named,
            too_much if named == field else 20.0,
        )
        assert remedy in found.remedy


def test_what_has_no_sound_default_is_required() -> None:
    some = (
        "name",
        "model.parameters",
        "training.rounds",
        "enrolment.max_expected_records",
    )
    for field in (NOISE, *some):
        values = task_values()
        *sections, last = field.split(".")
        del (values[sections[0]] if sections else values)[last]
        refused(rf"{re.escape(field)}.*required", Task.parse, values)


def test_values_out_of_range_are_refused_by_field() -> None:
    values: list[tuple[str, object]] = [
        *((RECORD, math.nan), (CLIP, "30"), (NOISE, 0.0), ("privacy.record_rate", 0.0)),
        *(("training.rounds", 2.0), ("enrolment.clients", 0)),
        *(("fractional_bits", 53), ("projections", 39)),
        *(("name", "ok\n"), ("nosie", 1), ("privacy.nosie", 1)),
        ("model.initial", "normal"),
        ("model.parameters.0.shape", [{"name": "w", "shape": [0]}]),
        ("model.parameters.0.name", [{"name": "", "shape": [8]}]),
        # They would be one tensor in the model's file.
        (
            "model.parameters",
            [{"name": "w", "shape": [3]}, {"name": "w", "shape": [5]}],
        ),
    ]
    for field, value in values:
        assert refusal({field.partition(".0.")[0]: value}).field.startswith(field)
