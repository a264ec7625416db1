"""The line that a server logs of a round: who counted, who didn't, under which ids."""

import json
import logging
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tests.conftest import small_task

from precad.aggregator.attempt_states import Counted, Opened
from precad.aggregator.training.round_end import MOST_NAMED, Steps, keep
from precad.aggregator.training.session import Session
from precad.common.clock import CLOCK
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Digest
from precad.common.process import JsonLines, doing

MODEL = Digest(b"\1" * 32)


def line(
    caplog: pytest.LogCaptureFixture,
    valid: list[ClientId],
    rejections: dict[ClientId, Rejection],
    ids: dict[ClientId, str],
    *asleep: ClientId,
) -> logging.LogRecord:
    cohort = (*valid, *rejections)
    opened = Opened(
        attempt=30,
        version=28,
        cohort=cohort,
        model=MODEL,
        counted=frozenset(cohort),
        asleep=frozenset(asleep),
    )
    counted = Counted(
        opened=opened, valid=tuple(valid), valid_set=MODEL, rejections=rejections
    )
    session = SimpleNamespace(
        task=small_task(),
        clock=CLOCK,
        model_store=SimpleNamespace(put=lambda *_: None),
        progress=SimpleNamespace(heard_from_peers=lambda _: None),
        store=SimpleNamespace(
            versions=SimpleNamespace(model_seal=lambda _: None),
            attempts=SimpleNamespace(finish=lambda *_: None),
            ledger=SimpleNamespace(participations=dict),
        ),
    )
    caplog.set_level(logging.INFO)
    keep(cast("Session", session), counted, np.zeros(4), MODEL, Steps(CLOCK), ids)
    return caplog.records[-1]


def test_a_rejected_owner_and_its_submission_stand_in_the_rounds_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    north, south, west = (
        ClientId(f"{name}-ward") for name in ("north", "south", "west")
    )
    record = line(
        caplog,
        [north],
        {west: Rejection.NORM_EXCEEDED, south: Rejection.ABSENT},
        {north: "0123456789ab", west: "ba9876543210"},
    )
    assert record.getMessage().startswith(
        "version 28, attempt 30: 1 of 3 submissions count (north-ward 0123456789ab),"
        " 1 absent (south-ward), 1 norm-exceeded (west-ward ba9876543210); "
    )


def test_who_slept_and_did_not_come_stands_there_as_not_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    north, south, west = (
        ClientId(f"{name}-ward") for name in ("north", "south", "west")
    )
    # North woke up in time: it counts as ever.
    absent = {west: Rejection.ABSENT, south: Rejection.ABSENT}
    record = line(caplog, [north], absent, {}, north, west)
    assert record.getMessage().startswith(
        "version 28, attempt 30: 1 of 3 submissions count (north-ward), 2 absent"
        " (south-ward, west-ward), 1 not waited for (west-ward); "
    )


def test_a_large_cohorts_line_stays_short(caplog: pytest.LogCaptureFixture) -> None:
    valid = [ClientId(f"ward-{number:04}") for number in range(1000)]
    text = line(caplog, valid, {}, {}).getMessage()
    assert f" {1000 - MOST_NAMED} more); " in text
    assert len(text) < 400


def test_text_and_fields_name_the_same_version(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process is at another one meanwhile."""
    monkeypatch.setattr("precad.common.process._fields", {})
    doing(version=27, attempt=29)
    record = line(caplog, [], {}, {})
    fields = json.loads(JsonLines().format(record))
    assert (fields["version"], fields["attempt"]) == (28, 30)
    assert fields["message"].startswith("version 28, attempt 30: ")
    logging.getLogger("precad").info("asked", extra={"version": 29, "owner": "ward"})
    fields = json.loads(JsonLines().format(caplog.records[-1]))
    assert (fields["version"], fields["owner"], "attempt" in fields) == (
        29,
        "ward",
        False,
    )
