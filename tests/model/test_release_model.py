"""The release protocol's model, whose rules the code follows, searched with cuts and
lost data."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.model import release_model as model

from precad.aggregator.store.schema import AttemptState

# Mutants that a search of seconds finds; `make model` tries all of them.
QUICK = [name for name, (_, replaced, _) in model.MUTANTS.items() if not replaced]


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "V": 1,
        "MAXA": 3,
        "CAP": 2,
        "SETS": (1, 3),
        "REPLACE": 0,
    }.items():
        monkeypatch.setattr(model, name, value)
    monkeypatch.setattr(model, "ON", set(model.FIXES))


def found(**bounds: object) -> dict[str, int]:
    for name, value in bounds.items():
        setattr(model, name, value)
    search: Callable[..., dict[str, int]] = model.search
    return search(200_000, long=False)


@pytest.mark.parametrize(
    "faults", [{}, {"REPLACE": 1, "MAXA": 2}], ids=["cuts", "lost data"]
)
def test_with_cuts_crashes_and_one_replaced_database_nothing_is_broken(
    faults: dict[str, int],
) -> None:
    assert found(**faults) == {}


@pytest.mark.parametrize("name", QUICK)
def test_what_the_rules_prevent_is_found_without_them(name: str) -> None:
    _, replaced, hides = model.MUTANTS[name]
    assert found(REPLACE=replaced, ON=(set(model.FIXES) - set(hides)) | {name})


def test_the_codes_states_bear_the_models_names() -> None:
    text = Path(model.__file__).read_text(encoding="utf-8")
    for state in map(
        AttemptState, ("prepared", "countersigned", "sent", "voided", "written-off")
    ):
        assert re.search(rf"\b{state.value.replace('-', ' ')}\b", text), state
