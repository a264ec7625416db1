"""Tables that aren't as the task says: `precad setup` writes all settings, and says how
they are mended.
"""

import re
from pathlib import Path

import pytest
from tests.rig.commands import precad, refused, said
from tests.rig.questions import SEX, asks, ward, write_csv

from precad.cli.local_deployment import to_toml

RECIPE = """[data]
target = { name = "died", kind = "categorical", levels = ["no", "yes"] }
columns = [
  { name = "age", centre = 60, scale = 20, fill = 60 },
  { name = "crp", centre = 30, scale = 10, fill = 30 },
  { name = "ward", kind = "categorical", levels = ["A", "B"], fill_level = "B" },
]
"""
GOOD = "age,crp,ward,died\n" + "70,30.9,A,yes\n50,20.1,B,no\n" * 20
RENAME = 'columns.rename = { age = "…", crp = "…", died = "…" }'
NAMES = {"age": "Alter", "crp": "CRP", "died": "verstorben"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("columns.toml").write_text(RECIPE)
    Path("one.csv").write_text(GOOD)
    sizes = ("--records", "2x40", "--epsilon", "3", "--architecture", "logistic")
    said("task", "new", "task.toml", "--recipe", "columns.toml", *sizes)
    return tmp_path


def setup(*files: str, task: str = "task.toml") -> str:
    """What stderr says."""
    data = [word for file in files for word in ("--data", file)]
    done = precad("setup", "run", "--task", task, *data)
    assert done.exit_code == 0, done.stderr
    return done.stderr


def doctor(name: str) -> str:
    return precad("doctor", "--wait", "0", "--config", f"run/{name}.toml").stdout


def german(
    separator: str, decimal: str, names: str = "Alter CRP ward verstorben"
) -> str:
    """`GOOD` under names of its own, as a German spreadsheet saves it."""
    _, *rows = GOOD.splitlines()
    table = [names.split(), *(row.replace(".", decimal).split(",") for row in rows)]
    if decimal == ",":
        cells = [row.split(",") for row in rows]
        table[1:] = [[cell.replace(".", decimal) for cell in row] for row in cells]
    quoted = [
        [f'"{cell}"' if separator in cell else cell for cell in row] for row in table
    ]
    return "".join(separator.join(row) + "\n" for row in quoted)


ENGLISH = "age crp ward died"
SEPARATOR = 'columns.separator = ";"'
DECIMAL = 'columns.decimal = ","'
MAYBE = DECIMAL + " where"
"""For a table whose numbers have none."""


@pytest.mark.parametrize(
    ("table", "mending"),
    [
        (german(",", "."), [RENAME, MAYBE]),
        (german(";", ","), [SEPARATOR, RENAME, DECIMAL]),
        (german(";", ".", ENGLISH), [SEPARATOR, MAYBE]),
        (german("\t", ",", ENGLISH), [r'columns.separator = "\t"', DECIMAL]),
        (german(",", ",", ENGLISH), [DECIMAL]),
        # A comma in a name is no separator.
        (german(";", ",").replace("ward", "Ort, ward"), None),
    ],
)
def test_a_table_with_a_form_of_its_own_is_written_for_and_mended_in_its_settings(
    table: str, mending: list[str] | None, place: Path
) -> None:
    """No settings were written for a hospital whose columns need them."""
    Path("two.csv").write_text(table)
    told = setup("one.csv", "two.csv")
    assert len(list(place.glob("run/*.toml"))) >= 4
    assert doctor("one").count("40 records, each") == 1
    assert "! two.csv" in told
    assert "precad doctor --config run/two.toml" in told
    assert "into run/two.toml" in told
    assert "weren't counted" in told
    assert "one.csv" not in told
    if mending is None:
        return
    lines = re.findall(r"columns\.\w+ = (?:\{.*?\}|\"[^\"]+\")", told)
    assert lines == [each.removesuffix(" where") for each in mending]
    lines = [line for line in mending if line != MAYBE]
    if RENAME in lines:
        assert "its columns are Alter, CRP, ward, verstorben" in told
    text = "\n".join(lines)
    for name, own in NAMES.items():
        text = text.replace(f'{name} = "…"', f'{name} = "{own}"')
    with Path("run/two.toml").open("a") as file:
        file.write(text)
    shown = doctor("two")
    assert ("40 records, each" in shown, "! two" in shown) == (True, False), shown


@pytest.mark.parametrize(
    ("table", "remedy"),
    [
        ("age,crp,ward,died\n70,30,A\n", "mend this line"),
        ("age,crp,ward,died\n70,30,A,maybe\n", "none of the task's levels"),
        ("age,crp,ward,died\n70,high,A,no\n", "isn't a number"),
        ("age,crp,ward,died\n", "has no records"),
    ],
)
def test_what_no_settings_mend_stays_refused(
    table: str, remedy: str, place: Path
) -> None:
    Path("two.csv").write_text(table)
    told = refused(
        *("setup", "run", "--task", "task.toml"),
        *("--data", "one.csv", "--data", "two.csv"),
    )
    assert (remedy in told, (place / "run").exists()) == (True, False)
    # Whose file it is, of several.
    assert "two.csv" in told


def test_questions_say_at_setup_who_has_more_records_than_the_largest(
    place: Path,
) -> None:
    """The doctor said it, and questions' page has no doctor."""
    queries = [{"name": "patients", "kind": "count", "by": "sex"}]
    enrolment = {"clients": 3, "max_expected_records": 1000}
    asked = asks(queries, columns=[SEX], enrolment=enrolment)
    Path("asked.toml").write_text(to_toml(asked))
    many = ward(1400, 1)
    write_csv(place / "many.csv", many)
    write_csv(place / "few.csv", ward(1000, 2))
    (place / "other.csv").write_text("Geschlecht;Ort\nf;1\nm;2\n")
    told = setup("many.csv", "few.csv", "other.csv", task="asked.toml")
    assert "few.csv" not in told
    assert "many.csv: records = 1400" in told
    assert "enrolment.max_expected_records = 1000; take part under two names" in told
    assert "records = 1400" in " ".join(doctor("many").split())
    assert SEPARATOR in told
    assert 'columns.rename = { sex = "…" }' in told


@pytest.mark.usefixtures("place")
def test_a_training_says_at_setup_who_passes_its_cap() -> None:
    Path("two.csv").write_text(GOOD + "50,20.1,B,no\n" * 400)
    cap = "passes the task's enrolment.max_expected_records"
    told = setup("one.csv", "two.csv")
    assert (told.count(cap), "two.csv: records = 440" in told) == (1, True)
    assert cap in " ".join(doctor("two").split())
