"""Who asks for no accounting loads none, and an owner's own account loads one accountant."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ACCOUNT = "precad.common.account"
HEAVY = ("numpy", "scipy", "dp_accounting")
ASKS = "from precad.common.account.participations import record_epsilon as e\n"
ASKS += "e(record_rate=0.2, noise_multiplier=2.0, participations=3, delta=1e-5)"


def loaded_by(program: str) -> set[str]:
    """Every module of a fresh process after ``program``."""
    run = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
    )
    return set(run.stdout.split())


def test_an_owners_account_loads_no_accountant_before_it_is_asked() -> None:
    loaded = loaded_by("import precad.client.own_account")
    assert {m for m in loaded if m.startswith(ACCOUNT)} == {
        ACCOUNT,
        f"{ACCOUNT}.events",
    }
    assert not loaded & set(HEAVY)


def test_an_epsilon_loads_the_exact_accountant_and_no_other() -> None:
    loaded = loaded_by(ASKS)
    assert f"{ACCOUNT}.exact" in loaded
    others = {f"{ACCOUNT}.{m}" for m in ("calibrate", "guarantees", "planning", "rdp")}
    assert not loaded & {"dp_accounting", "scipy.signal", "scipy.stats"}
    assert not loaded & others
    assert not {m for m in loaded if m.startswith("precad.common.certify")}


@pytest.mark.parametrize("module", ["precad.dealer.process", "precad.client.train"])
def test_a_dealer_and_a_training_step_load_no_accounting(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert not {m for m in loaded if m.startswith((ACCOUNT, "precad.common.certify"))}
    assert "dp_accounting" not in loaded
