"""The release protocol's model: searched with cuts, crashes and replaced databases.

`release_model.py` is the rule that the code follows (`aggregator/training/recovery.py`,
`aggregator/release.py`, `aggregator/training`); its states bear the same
names. A change of either is tried here first: each mutant must be caught. `make model` searches
with wider bounds (minutes).
"""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.model import release_model as model

from precad.aggregator.store.schema import AttemptState

QUICK = (
    "sent_first",
    "void_alone",
    "countersign_any",
    "charge_late",
    "sdk_late",
    "count_late",
    "coin_per_attempt",
    "fresh_noise",
    "coin_early",
)
"""Mutants that a search of seconds finds; `make model` tries all of them."""


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"V": 1, "MAXA": 3, "CAP": 2, "SETS": (1, 3), "REPLACE": 0}.items():
        monkeypatch.setattr(model, name, value)
    monkeypatch.setattr(model, "ON", set(model.FIXES))


def found(**bounds: Any) -> dict[str, int]:
    for name, value in bounds.items():
        setattr(model, name, value)
    search: Any = model.search
    broken: dict[str, int] = search(200_000, long=False)
    return broken


def test_with_cuts_and_crashes_nothing_is_broken() -> None:
    assert found() == {}


def test_with_one_replaced_database_nothing_is_broken() -> None:
    assert found(REPLACE=1, MAXA=2) == {}


@pytest.mark.parametrize("name", QUICK)
def test_what_the_rules_prevent_is_found_without_them(name: str) -> None:
    _, replaced, hides = model.MUTANTS[name]
    assert found(REPLACE=replaced, ON=(set(model.FIXES) - set(hides)) | {name})


def test_the_codes_states_bear_the_models_names() -> None:
    text = Path(model.__file__).read_text(encoding="utf-8")
    for state in ("prepared", "countersigned", "sent", "voided", "written-off"):
        assert AttemptState(state)
        words = {"written-off": "written off"}.get(state, state)
        assert re.search(rf"\b{words}\b", text), f"the model doesn't speak of {words!r}"
