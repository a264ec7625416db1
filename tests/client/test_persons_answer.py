"""Where a task has a unit, each of its units answers once, by its first record."""

import numpy as np
import pytest
from tests.rig.questions import QUERIES, asking, ward

from precad.accounting.guarantees import planned_guarantees
from precad.client.asked_records import asked_records
from precad.client.records.columns import Columns
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.mechanism import Unit
from precad.common.roster import Enrolment

OF_PATIENTS = {"unit": "patient"}
NAMED = Columns(unit="id")


def visits(seed: int) -> tuple[dict[str, list[str]], list[int]]:
    """A table of visits, and the place of each patient's first one."""
    table = ward(300, seed)
    generator = np.random.default_rng(seed)
    ids = [f"p{number}" for number in generator.integers(0, 80, 300)]
    return table | {"id": ids}, sorted(ids.index(each) for each in set(ids))


@pytest.mark.parametrize("seed", range(3))
def test_a_patient_adds_what_its_first_record_alone_would(seed: int) -> None:
    table, first = visits(seed)
    task = asking(QUERIES, OF_PATIENTS)
    records = asked_records(table, task, NAMED)
    assert records.unit_count == len(first)
    of_first = {name: [table[name][at] for at in first] for name in ward(1, 1)}
    alone = asked_records(of_first, asking())
    assert (records.places == alone.places).all()
    assert (records.values == alone.values).all()
    # Further records change nothing, whatever they say.
    longer = {name: [*cells, cells[0]] for name, cells in table.items()}
    longer["age"][-1] = "1"
    assert (asked_records(longer, task, NAMED).total() == records.total()).all()


def test_how_often_a_patient_came_moves_nothing_of_anybodys() -> None:
    """Others are rounded alike, wherever in the table its further stays are."""
    table, _ = visits(4)
    task = asking(QUERIES, OF_PATIENTS)
    total = asked_records(table, task, NAMED).total()
    for place in (1, 40, 299):
        longer = {
            name: [*cells[:place], cells[0], *cells[place:]]
            for name, cells in table.items()
        }
        assert (asked_records(longer, task, NAMED).total() == total).all()


def test_the_guarantee_is_a_patients() -> None:
    task = asking(QUERIES, OF_PATIENTS)
    assert task.mechanism.unit == Unit("patient")
    assert task.privacy.most_records_per_unit == 1
    of_patients, of_records = (planned_guarantees(each)[0] for each in (task, asking()))
    assert of_patients.unit == "patient"
    assert of_patients.epsilon == of_records.epsilon
    assert task.digest != asking().digest


def test_whose_a_record_is_must_be_said_where_it_matters() -> None:
    table, _ = visits(1)
    with pytest.raises(Misconfiguration, match="protects a patient"):
        asked_records(table, asking(QUERIES, OF_PATIENTS))
    with pytest.raises(Misconfiguration, match="has no privacy"):
        asked_records(table, asking(), NAMED)
    table["id"][4] = ""
    with pytest.raises(Misconfiguration, match="id"):
        asked_records(table, asking(QUERIES, OF_PATIENTS), NAMED)


def test_owners_claim_patients() -> None:
    table, first = visits(2)
    few = {"clients": 3, "max_expected_records": len(first)}
    task = asking(QUERIES, OF_PATIENTS, enrolment=few)
    count = asked_records(table, task, NAMED).unit_count
    Enrolment(ClientId("ward"), count, 1.0).check(task)
