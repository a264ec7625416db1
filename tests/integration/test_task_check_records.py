"""`precad task check --data` on arrays and Parquet: what can be used, and what must be mended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.rig.commands import precad
from tests.rig.tasks import RECIPE

RECORDS, FEATURES = 40, 8
REAL = """[data]
target = { name = "days", centre = 10, scale = 5 }
columns = [{ name = "age", centre = 60, scale = 20 }]
"""
OWN = """from torch import nn
from torch.nn import functional


def Images():
    return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3))


def Days():
    return nn.Linear(1, 1)


def squares(outputs, targets, reduction="mean"):
    return functional.mse_loss(outputs.squeeze(-1), targets, reduction=reduction)
"""
WISHES = ("--records", "3x600", "--epsilon", "3", "--rounds", "50")
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks for plain arrays, for a recipe, for images and for a real-valued target."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "real.toml").write_text(REAL)
    (folder / "nets_of_checks.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        sizes = ("--architecture", "logistic", "--features", str(FEATURES), "--classes", "3")
        for name, wanted in {
            "arrays": sizes,
            "table": ("--recipe", "recipe.toml", "--architecture", "logistic"),
            "images": ("--model", "nets_of_checks:Images"),
            "days": ("--recipe", "real.toml", "--model", "nets_of_checks:Days"),
        }.items():
            made = precad("task", "new", f"{name}.task", *wanted, *WISHES)
            assert made.exit_code == 0, made.stderr
    return folder


def check(folder: Path, task: str, data: Path, *more: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return precad("task", "check", f"{task}.task", "--data", data, *more)


def inputs(*shape: int) -> Any:
    return np.random.default_rng(1).random((RECORDS, *(shape or (FEATURES,))), np.float32)


def labels() -> Any:
    return np.arange(RECORDS) % 3


def rows(**changes: Any) -> pd.DataFrame:
    usual = {"age": [70.0, None] * 20, "ward": ["A", "Z"] * 20, "died": ["yes", "no"] * 20}
    return pd.DataFrame(usual | changes)


def arrays(**changes: Any) -> Change:
    return lambda path: np.savez(path, **({"x": inputs(), "y": labels()} | changes))


def table(**changes: Any) -> Change:
    return lambda path: rows(**changes).to_parquet(path)


def with_nan() -> Any:
    values = inputs()
    values[7, 3] = np.nan
    return values


MANY = arrays(x=np.zeros((9000, FEATURES)), y=np.zeros(9000, np.int64))


def test_arrays_of_any_precision_are_taken(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "ward.npz"
    np.savez(data, x=(9 * inputs()).astype(np.float16), y=labels().astype(np.int32))
    found = check(folder, "arrays", data)
    assert found.exit_code == 0, found.stderr
    assert f"40 records, each float32[{FEATURES}]; take every record; 27 parameters" in found.stdout


def test_images_are_tried_with_a_model_of_ones_own(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "ward.npz"
    np.savez(data, x=inputs(1, 2, 4), y=labels())
    unknown = check(folder, "images", data)
    assert "40 records of shape [1, 2, 4]; give --model" in unknown.stdout, unknown.stderr
    tried = check(folder, "images", data, "--model", "nets_of_checks:Images")
    assert "take every record" in tried.stdout, tried.stderr
    np.savez(data, x=inputs(2, 4, 1), y=labels())
    refused = check(folder, "images", data, "--model", "nets_of_checks:Images")
    assert refused.exit_code == 2
    assert "a record's input is float32[2, 4, 1]" in refused.stderr


def test_a_parquet_table_is_read_by_the_tasks_recipe(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "ward.parquet"
    rows().to_parquet(data)
    found = check(folder, "table", data)
    assert found.exit_code == 0, found.stderr
    assert "40 records, each float32[4]; take every record" in found.stdout
    encoded = tmp_path / "ward.npz"
    np.savez(encoded, x=inputs(4), y=labels() % 2)
    assert "take every record" in check(folder, "table", encoded).stdout


def test_real_valued_targets_need_a_loss_of_ones_own(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "ward.parquet"
    pd.DataFrame({"age": [70.0, 50.0] * 20, "days": [3.0, 12.5] * 20}).to_parquet(data)
    own = ("--model", "nets_of_checks:Days")
    usual = check(folder, "days", data, *own)
    assert usual.exit_code == 2
    assert "a loss of your own" in usual.stderr
    found = check(folder, "days", data, *own, "--loss", "nets_of_checks:squares")
    assert "take every record" in found.stdout, found.stderr
    absent = check(folder, "days", data, *own, "--loss", "nets_of_checks:cubes")
    assert "give MODULE:NAME" in absent.stderr
    alone = precad("task", "check", folder / "days.task", "--loss", "a:b")
    assert "give --data too" in alone.stderr


BAD: dict[str, list[tuple[Change, str]]] = {
    "arrays npz": [
        (arrays(x=inputs(FEATURES - 1)), "a record's input is float32[7]"),
        (arrays(x=with_nan()), "input[3] of record 7 = nan: must be finite"),
        (arrays(x=inputs().astype(str)), "give an array of numbers"),
        (arrays(x=inputs()[:0], y=labels()[:0]), "records = 0"),
        (arrays(y=labels()[1:]), "one row per record"),
        (arrays(y=labels() + 1), "target of record 2 = 3: the model has 3 classes"),
        (lambda path: np.savez(path, x=inputs()), "has no array y, but x: save x and y in it"),
        (MANY, "passes the task's enrolment.max_expected_records"),
        (lambda path: path.write_bytes(b"PK\x03\x04"), "can't be read as arrays of numbers"),
        (lambda path: path, "there is no such file"),
    ],
    "table parquet": [
        (table(age=["70"] * 39 + ["old"]), "column age, record 39 = 'old': isn't a number"),
        (table(died=["yes", "maybe"] * 20), "none of the task's levels (no, yes)"),
        (rows()[["age", "died"]].to_parquet, "column ward"),
        (lambda path: path.write_bytes(b"PAR1"), "can't be read as Parquet"),
        (lambda path: path, "there is no such file"),
    ],
    "arrays csv": [(rows().to_csv, "the task has no [data]")],
    "arrays npy": [(lambda path: np.save(path, inputs()), "a .npz file with arrays x and y")],
}
"""By the task and the ending of the file."""


@pytest.mark.parametrize(
    ("kind", "spoil", "said"), [(kind, *row) for kind, some in BAD.items() for row in some]
)
def test_records_that_cannot_be_used_are_named(
    kind: str, spoil: Change, said: str, folder: Path, tmp_path: Path
) -> None:
    task, ending = kind.split()
    data = tmp_path / f"ward.{ending}"
    spoil(data)
    found = check(folder, task, data)
    assert found.exit_code == 2, found.stdout
    assert said in found.stderr
    assert data.name in found.stderr or "data, " in found.stderr
    # A sentence, and no wrapper's text in it.
    assert len(found.stderr.splitlines()) == 1
    for word in ("Traceback", "np.float", "Errno"):
        assert word not in found.stderr
