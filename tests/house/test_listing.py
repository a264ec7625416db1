"""The folder listing tells the story: the ten questions name files that are there."""

import tomllib
from collections import Counter
from pathlib import Path

HOUSE = Path(__file__).parent
ROOT = HOUSE.parents[1]


def test_every_file_that_answers_a_question_is_there() -> None:
    questions = tomllib.loads((HOUSE / "ten_questions.toml").read_text("utf-8"))["question"]
    assert len(questions) == 10
    named = [each["file"] for each in questions if "file" in each]
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_no_two_files_of_the_wheel_have_one_name_but_each_parts_process() -> None:
    parts = [each for each in (ROOT / "src" / "precad").iterdir() if each.is_dir()]
    found = Counter(path.name for part in parts for path in part.rglob("*.py"))
    allowed = {"__init__.py", "process.py"}
    assert {name for name, number in found.items() if number > 1} <= allowed
