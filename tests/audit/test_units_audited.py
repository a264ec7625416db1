"""Persons of ten equal records, attacked by whoever sees the sums.

With the unit the statement on a person holds. Without it the statement on a record
holds, and says nothing of a person: the same attack passes its ε.
"""

from dataclasses import replace
from typing import Any

import torch
from research.audits.canary_training import Canaries, Designed, audit, designed, planned
from research.audits.canary_training import train as train_with_canaries
from research.audits.verdict import AuditVerdict

from precad.client.records.torch_records import Records
from precad.common.task import Task

PERSONS = 60
RECORDS_EACH = 10
ROUNDS = 20
SEED = 5


def task_of(made: Designed, unit: str | None) -> Task:
    """The audit's task: for persons where there is a unit, and with room for all."""
    values = made.task.model_dump(mode="json")
    values["enrolment"]["max_expected_records"] = float(RECORDS_EACH * PERSONS)
    values["privacy"]["client_clip"] *= RECORDS_EACH
    values["privacy"]["unit"] = unit
    if unit is not None:
        values["privacy"]["most_records_per_unit"] = RECORDS_EACH
    return Task.parse(values)


def ten_each(made: Designed, unit: str | None) -> Designed:
    """The same training with every canary ten times, and one coin for all ten."""
    canaries = made.canaries
    persons = torch.arange(PERSONS).repeat_interleave(RECORDS_EACH)
    identifiers = list(map(str, persons.tolist())) if unit else None
    inputs, targets = canaries.records.take(persons.numpy())
    shares: Any = {
        name: (x, y, range(len(y))) if unit else (x, y)
        for name, (x, y) in made.shares.items()
    }
    return replace(
        made,
        task=task_of(made, unit),
        shares=shares,
        canaries=Canaries(
            Records(inputs, targets, identifiers),
            canaries.coins if unit else canaries.coins[:, persons.numpy()],
        ),
    )


def attacked(unit: str | None) -> list[AuditVerdict]:
    """By an adversary that knows every person's gradient, and guesses who counts."""
    made = designed(PERSONS, ROUNDS, SEED)
    trained = train_with_canaries(ten_each(made, unit), seed=SEED)
    # What is stated of one unit is held against what is seen of one person.
    stated = replace(made, task=task_of(made, unit))
    return list(audit(planned(stated, 1), [(trained, stated)]))


def test_the_statement_on_a_person_holds_however_many_records_a_person_has() -> None:
    for verdict in attacked("patient"):
        assert not verdict.refuted
        assert 0 <= verdict.by_family < verdict.epsilon


def test_the_statement_on_a_record_is_passed_by_persons_of_ten() -> None:
    for verdict in attacked(None):
        assert verdict.refuted
        assert verdict.by_family >= verdict.epsilon
        assert verdict.guesses.correct == verdict.guesses.made
