"""docs/quick-start.md, followed to the letter: from tables of text to predictions."""

import csv
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rig.waiting import DEADLINE_S

import precad

DOCUMENT = Path(__file__).parents[2] / "docs" / "quick-start.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
MOST_COMMANDS, MOST_LINES = 8, 25
UNITS = ("surgery", "medicine", "icu", "ambulance")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines()]
IF_WRONG = re.findall(r"^    (precad .+)$", TEXT, flags=re.MULTILINE)
"""What the page has where something is wrong: to look before enrolling."""
JOIN = next(place for place, line in enumerate(COMMANDS) if line.startswith("precad join"))
TYPED = [*COMMANDS[1:JOIN], *IF_WRONG, *COMMANDS[JOIN:]]
FILES = {"columns.toml": blocks("toml"), "nets.py": blocks("python")}


def patient(rng: random.Random) -> tuple[list[str], str]:
    """A row without its target, and the target; some values are missing."""
    age, pressure, unit = rng.gauss(62, 14), rng.gauss(132, 20), rng.choice(UNITS)
    risk = (age - 62) / 14 + (pressure - 132) / 20 + (1 if unit in UNITS[2:] else -1)
    cells = [f"{age:.0f}", f"{pressure:.0f}", unit]
    gone = [rng.random() < 0.04 for _ in cells]
    row = [
        mark if lost else cell for cell, lost, mark in zip(cells, gone, ("", "NA", ""), strict=True)
    ]
    return row, "yes" if risk > 0 else "no"


def write(path: Path, rows: list[list[str]], *names: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["age", "pressure", "unit", *names], *rows])


def test_it_takes_few_commands_and_lines() -> None:
    assert len(COMMANDS) <= MOST_COMMANDS
    lines = [line for (text,) in FILES.values() for line in text.splitlines() if line.strip()]
    assert len(lines) + len(COMMANDS) <= MOST_LINES


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Path]:
    """The folder, after all commands but the installation, which test_package has."""
    rng = random.Random(5)
    for ward in (1, 2, 3):
        patients = [patient(rng) for _ in range(400)]
        write(tmp_path / f"ward-{ward}.csv", [[*row, said] for row, said in patients], "readmitted")
    for name, (text,) in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    write(tmp_path / "new.csv", [patient(rng)[0] for _ in range(3)])
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(precad.__file__).parents[1]),
    }
    background: list[subprocess.Popen[bytes]] = []
    assert "pip install '.[demo]'" in COMMANDS[0]
    try:
        for line in TYPED:
            words = shlex.split(line.removesuffix("&"))
            assert words[0] == "precad"
            command = [sys.executable, "-m", *words]
            if line.endswith("&"):
                with (tmp_path / f"log-{len(background)}").open("wb") as log:
                    process = subprocess.Popen(
                        command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT
                    )
                background.append(process)
                continue
            ended = subprocess.run(
                command,
                check=False,
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
            )
            assert ended.returncode == 0, (line, ended.stderr[-3000:])
        yield tmp_path
    finally:
        for process in background:
            process.terminate()
        for process in background:
            process.wait(DEADLINE_S)


@pytest.mark.timeout(900)
def test_the_quick_start_ends_in_predictions(followed: Path) -> None:
    with (followed / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert {row["class"] for row in rows} <= {"no", "yes"}
    for owner in ("ward-1", "ward-2", "ward-3"):
        assert (followed / "run" / "state" / owner / "model.safetensors").is_file()
    # Patients nobody trained on: far better than guessing.
    rng = random.Random(6)
    patients = [patient(rng) for _ in range(500)]
    write(followed / "others.csv", [row for row, _ in patients])
    command = ["predict", "others.csv", "--config", "run/ward-2.toml", "--out", "said.csv"]
    subprocess.run(
        [sys.executable, "-m", "precad", *command],
        check=True,
        cwd=followed,
        env=os.environ | {"PYTHONPATH": str(Path(precad.__file__).parents[1])},
    )
    with (followed / "said.csv").open(encoding="utf-8", newline="") as file:
        said = [row["class"] for row in csv.DictReader(file)]
    right = sum(each == truth for each, (_, truth) in zip(said, patients, strict=True))
    assert right > 0.75 * len(patients)
    shutil.rmtree(followed / "run")
