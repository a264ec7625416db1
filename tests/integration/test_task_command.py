"""`precad task` as a person runs it, and the reference of every field."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.rig.commands import document, precad, refused, said
from tests.rig.tasks import RECIPE

from precad.accounting.exact import record_epsilon
from precad.accounting.guarantees import planned_guarantees
from precad.cli.task_planning import written
from precad.client.own_account import OwnAccount
from precad.common.task import Task
from precad.common.task_schema import Column, DataSection

ROOT = Path(__file__).parents[2]
NET = ["--architecture", "logistic", "--features", "64", "--classes", "10"]
WISHES = ["--records", "3x600", "--epsilon", "3", "--rounds", "50"]


def new(path: Path, *arguments: str) -> Any:
    return precad("task", "new", path, *arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("new") / "three wards.toml"
    result = new(path, *NET, *WISHES)
    assert result.exit_code == 0, result.stderr
    return path


def test_what_new_writes_loads_at_once_and_keeps_what_was_asked(made: Path) -> None:
    task = Task.load(made)
    privacy = task.privacy
    assert (task.name, task.dimension, task.training.rounds) == ("three-wards", 650, 50)
    assert (task.enrolment.clients, task.enrolment.min_clients) == (3, 2)
    # Few owners take part in every round; the limit is what was asked, and the plan fits in it.
    assert (privacy.client_rate, privacy.epsilon_limit) == (1.0, 3.0)
    epsilon = record_epsilon(
        record_rate=privacy.record_rate,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
        participations=50,
    )
    assert 2.9 < epsilon <= 3


def test_every_field_stands_in_it_with_a_comment(made: Path) -> None:
    lines = made.read_text().splitlines()
    keys = [place for place, line in enumerate(lines) if line and line[0].islower()]
    assert all(lines[place - 1].startswith("#") for place in keys)
    assert {"epsilon_limit", "deadlines.work".partition(".")[2], "projections"} <= {
        lines[place].partition(" ")[0] for place in keys
    }


def test_a_model_of_ones_own_gives_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wards_of_ours.py").write_text(
        "from torch import nn\n\ndef Net():\n    return nn.Sequential(nn.Linear(4, 2))\n"
    )
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.toml"
    sizes = ["--records", "600", "--owners", "3", "--epsilon", "3", "--rounds", "50"]
    result = new(path, "--model", "wards_of_ours:Net", *sizes)
    assert result.exit_code == 0, result.stderr
    found = [(each.name, each.shape) for each in Task.load(path).model.parameters]
    assert found == [("0.weight", (2, 4)), ("0.bias", (2,))]


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("Item", [], "an if on data), in wards_by_value.py line 9, `return self.line(x)"),
        ("Item", ["--features", "5"], "takes no record of shape [5]"),
        ("compiled", [], "torch.compile can't be trained record by record; give the module itself"),
        ("lazy", [], "its shapes aren't known yet"),
        ("odd", [], ""),
    ],
)
def test_a_model_that_cannot_train_is_refused_with_its_line(
    name: str, more: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wards_by_value.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Item(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.line = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n        return self.line(x) * x.sum().item()\n\n"
        "def compiled():\n    return torch.compile(nn.Linear(4, 2))\n\n"
        "def lazy():\n    return nn.LazyLinear(2)\n\n"
        "def odd():\n    return nn.Sequential(nn.Flatten(), nn.Conv1d(7, 1, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    result = new(tmp_path / "own.toml", "--model", f"wards_by_value:{name}", *WISHES, *more)
    assert (said or "the model wasn't tried") in result.stderr
    assert result.exit_code == (2 if said else 0), result.exception
    assert (tmp_path / "own.toml").exists() is not bool(said)


def test_what_is_written_is_the_task_whatever_its_columns_are_named(made: Path) -> None:
    task, names = Task.load(made), ("Überwachung", "𝛼 \N{SNOWMAN}", "a\x7fb")
    data = DataSection.model_validate(tomllib.loads(RECIPE)["data"])
    odd = data.model_copy(update={"columns": tuple(Column(name=name) for name in names)})
    for update in ({}, {"projections": 60}, {"data": data}, {"data": odd}):
        changed = task.model_copy(update=update)
        assert Task.parse(tomllib.loads(written(changed, "head"))) == changed


def test_check_names_the_mistake_and_show_says_what_holds(made: Path, tmp_path: Path) -> None:
    digest = str(Task.load(made).digest)
    assert digest in said("task", "check", made)
    broken = tmp_path / "broken.toml"
    broken.write_text(made.read_text().replace("projections", "projektions"))
    assert "projektions" in refused("task", "check", broken)
    shown = said("task", "show", made)
    for words in ("against one curious server", "stop counting an owner at ε = 3", "2 to 3 owners"):
        assert words in shown
    answer = document("task", "show", made)
    assert (answer["digest"], len(answer["statements"])) == (digest, 3)


@pytest.mark.parametrize("rate", ["1.0", "0.3"])
def test_the_limit_that_show_prints_lasts_to_the_end(made: Path, tmp_path: Path, rate: str) -> None:
    """A number that is rounded to the nearest ends an owner's part after two rounds of four."""
    path = tmp_path / "odd.toml"
    path.write_text(
        made.read_text()
        .replace("noise_multiplier = ", "noise_multiplier = 7.123 # ")
        .replace("client_rate = 1.0", f"client_rate = {rate}")
    )
    task = Task.load(path)
    said = precad("task", "show", path).stdout
    found = re.search(r"to the end with ([\d.]+) or more; .* same limit, ([\d.]+) or more", said)
    assert found, said
    for number, whole in ((found[1], True), (found[2], False)):
        own = OwnAccount(task, task.privacy.record_rate, float(number), None)
        assert (own.rounds_left(50) >= own.planned(), own.whole_task()) == (True, whole)


def test_the_check_of_norms_decides_what_is_said_of_a_server_that_cheats(
    made: Path, tmp_path: Path
) -> None:
    path = tmp_path / "proof.toml"
    assert new(path, *NET, *WISHES, "--validation", "proof").exit_code == 0
    task, other = Task.load(path), Task.load(made)
    assert (task.validation, other.validation) == ("proof", "crypten")
    shown = [said("task", "show", each) for each in (path, made)]
    words = "For a record, against one malicious server, with any other clients"
    assert words in shown[0]
    assert words not in shown[1]
    assert "Nothing is claimed against a server that cheats" in shown[1]
    # A longer update, and what an owner uploads: the proof too.
    assert (
        "passes with probability 9.1e-13 in all, for attackers who compute 2^60 hashes" in shown[0]
    )
    assert "passes with probability 2^−40 a submission" in shown[1]
    assert task.proof is not None
    assert f"An owner uploads {64 + 8 * task.proof.body_words:,} bytes" in shown[0]
    assert f"An owner uploads {32 + 8 * task.dimension:,} bytes" in shown[1]
    answer = document("task", "show", path)
    *planned, capped = answer["statements"]
    assert (len(planned), capped["basis"]) == (3, "cap")
    assert capped["malicious_server"] is True
    # The limit that the task enforces holds at the cap too.
    assert planned[0]["epsilon"] <= capped["epsilon"] <= task.privacy.epsilon_limit


@pytest.mark.parametrize("rounds", [50, 53, 60, 70])
def test_what_is_said_to_be_added_to_delta_is_no_less_than_what_is(
    tmp_path: Path, rounds: int
) -> None:
    path = tmp_path / "proof.toml"
    wishes = [*WISHES[:-1], str(rounds), "--validation", "proof"]
    assert new(path, *NET, *wishes).exit_code == 0
    exact = planned_guarantees(Task.load(path))
    rejections = [each.rejection_delta or 0.0 for each in exact]
    broken = exact[-1].advantage_delta or 0.0
    shown, plan, account = (
        precad(*command).stdout
        for command in (
            ["task", "show", str(path)],
            ["plan", "--task", str(path)],
            ["account", "--task", str(path)],
        )
    )
    (in_all,) = re.findall(r"with δ and (\S+) more", shown)
    assert float(in_all) >= rejections[-1] + broken
    *said, in_plan = map(float, re.findall(r"δ and (\S+) more", plan))
    assert all(a >= b for a, b in zip(said, rejections[:-1], strict=True))
    assert in_plan >= rejections[-1] + broken
    told = map(float, re.findall(r"(\S+) \((?:one-server|clients-only|client-level)\)", account))
    assert all(a >= b for a, b in zip(told, rejections[:-1], strict=True))
    (by_breaking,) = re.findall(r"cryptography adds at most (\S+) for", account)
    assert float(by_breaking) >= broken


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (WISHES, "give either --architecture"),
        ([*NET, "--records", "3x600"], "give --epsilon"),
        ([*NET, "--model", "a:b", *WISHES], "give either --architecture"),
        ([*NET[:4], *WISHES], "give --classes"),
        (["--model", "nowhere:Net", *WISHES], "give MODULE:NAME"),
        (["--model", "json:dumps", *WISHES], "give MODULE:NAME"),
        (["--model", "builtins:dict", *WISHES], "torch.nn.Module"),
        ([*NET, *WISHES, "--owners", "3"], "leave --owners out"),
        ([*NET, *WISHES[2:], "--records", "6000;500"], "commas"),
        ([*NET, *WISHES[2:], "--records", "3x500,1200,0x40"], "'0x40': give 1 or more"),
        ([*NET, *WISHES[2:], "--records", "3x500,twelve"], "'twelve' is no size"),
        ([*NET, *WISHES[2:], "--records", "100001x5"], "at most 100,000"),
        ([*NET, *WISHES[2:], "--records", "9" * 5000], "like 10x6000"),
        ([*NET, *WISHES, "--name", "Drei Häuser"], "name"),
    ],
)
def test_a_wrong_wish_names_the_remedy_and_writes_nothing(
    arguments: list[str], remedy: str, tmp_path: Path
) -> None:
    path = tmp_path / "task.toml"
    assert remedy in refused("task", "new", path, *arguments)
    assert not path.exists()


def test_a_file_that_is_there_is_kept(made: Path) -> None:
    before = made.read_bytes()
    assert "exists already" in refused("task", "new", made, *NET, *WISHES)
    assert made.read_bytes() == before


OWN = """from torch import nn


def Fits():
    return nn.Linear(4, 2)


def Wide():
    return nn.Linear(5, 2)


def Three():
    return nn.Linear(4, 3)
"""


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe, models and a table; the current one."""
    (tmp_path / "columns.toml").write_text(RECIPE)
    (tmp_path / "nets_of_hospital.py").write_text(OWN)
    (tmp_path / "ward.csv").write_text("age,ward,died\n" + "70,A,yes\n,C,no\n" * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


FROM_RECIPE = ["--recipe", "columns.toml", *WISHES]


def test_a_recipe_gives_the_models_size_and_stands_in_the_task(hospital: Path) -> None:
    path = hospital / "task.toml"
    result = new(path, *FROM_RECIPE, "--architecture", "logistic")
    assert result.exit_code == 0, result.stderr
    task = Task.load(path)
    assert task.dimension == 4 * 2 + 2
    assert task.data
    assert [column.name for column in task.data.columns] == ["age", "ward"]
    check = ("task", "check", path, "--data")
    assert "40 records, each float32[4]" in said(*check, "ward.csv")
    bad = hospital / "bad.csv"
    bad.write_text((hospital / "ward.csv").read_text().replace("70", "seventy", 1))
    found = precad(*check, bad)
    said_so = "record 0 (line 2) = 'seventy': isn't a number" in found.stderr
    assert (found.exit_code, said_so) == (2, True), found.stderr


def test_a_model_of_ones_own_is_tried_on_records(hospital: Path) -> None:
    path = hospital / "task.toml"
    assert new(path, *FROM_RECIPE, "--model", "nets_of_hospital:Fits").exit_code == 0
    check, fits = ("task", "check", path, "--data", "ward.csv"), "nets_of_hospital:Fits"
    assert "--model to try them with your model" in said(*check)
    assert "take every record" in said(*check, "--model", fits)
    wide = precad(*check, "--model", "nets_of_hospital:Wide")
    assert (wide.exit_code, "the task has weight[2, 4]" in wide.stderr) == (2, True)
    assert "give --data too" in precad(*check[:3], "--model", fits).stderr


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--model", "nets_of_hospital:Wide"], "takes no record of shape [4]"),
        (["--model", "nets_of_hospital:Three"], "its target needs [1, 2]"),
        (["--architecture", "logistic", "--features", "4"], "leave --features out"),
    ],
)
def test_what_the_recipe_says_nothing_else_may(
    arguments: list[str], remedy: str, hospital: Path
) -> None:
    assert remedy in refused("task", "new", hospital / "task.toml", *FROM_RECIPE, *arguments)


def test_a_recipe_with_a_mistake_names_the_file(hospital: Path) -> None:
    (hospital / "columns.toml").write_text(RECIPE.replace("centre", "center"))
    arguments = ("task", "new", "task.toml", *FROM_RECIPE, "--architecture", "logistic")
    assert "unknown key in columns.toml" in refused(*arguments)


@pytest.mark.parametrize(
    ("records", "clip", "excess"),
    [("1000x1", 1.0, None), ("3x30", 2.0, None), ("3x600", 8.2, None), ("1000x1", 10.0, "10")],
)
def test_an_owners_clip_is_what_it_can_sample_at_most_and_more_is_warned_of(
    tmp_path: Path, records: str, clip: float, excess: str | None
) -> None:
    """Ten times what an honest owner of one record can send arms attackers alone."""
    path = tmp_path / "clipped.toml"
    wishes = ["--records", records, "--epsilon", "3", *(["--client-clip", "10"] if excess else [])]
    made = new(path, *NET, *wishes)
    assert (made.exit_code, Task.load(path).privacy.client_clip) == (0, clip)
    warned = f"one bad owner weighs as much as {excess} honest ones; make it 1 or less"
    assert (warned in made.stderr) is bool(excess), made.stderr
    for command in ("show", "check"):
        said = precad("task", command, path)
        assert ("arms attackers alone" in said.stderr) is bool(excess)


@pytest.mark.parametrize(
    ("records", "rate"), [("1000x1", 1.0), ("30x4,2", 0.25), ("9x15", 0.067), ("3x30", 0.05)]
)
def test_an_owner_samples_a_record_a_round_unless_another_rate_is_asked_for(
    tmp_path: Path, records: str, rate: float
) -> None:
    """At a twentieth ten bad owners of a thousand took the model to chance: they send always."""
    made = new(tmp_path / "task.toml", *NET, "--records", records, "--epsilon", "3")
    assert Task.load(tmp_path / "task.toml").privacy.record_rate == rate
    assert "weighs" not in made.stderr


@pytest.mark.parametrize(
    ("wishes", "warned"),
    [
        (
            ["--records", "1000x1", "--record-rate", ".05"],
            (
                "client_clip = 1 lets bad owners weigh more: they send it in every round, and an "
                "owner of 1 record samples 0.05 on average. So one bad owner weighs as much as 20 "
                "honest ones; raise record_rate towards 1, with the noise that keeps ε"
            ),
        ),
        (
            ["--records", "9x200", "--client-clip", "25"],
            (
                "an owner of 200 records samples 10 on average. So one bad owner weighs as much as "
                "2.5 honest ones; make it 20 or less"
            ),
        ),
        (["--records", "9x200", "--client-clip", "20"], ""),
    ],
)
def test_what_a_bad_owner_weighs_beside_an_honest_one_is_warned_of(
    tmp_path: Path, wishes: list[str], warned: str
) -> None:
    made = new(tmp_path / "task.toml", *NET, *wishes, "--epsilon", "3")
    assert made.exit_code == 0, made.output
    assert warned in made.stderr
    assert ("weighs" in made.stderr) is bool(warned)


@pytest.mark.parametrize(
    "wishes",
    [
        ["--records", "3x600", "--epsilon", "3", *NET],
        ["--records", "500,3x20", "--epsilon", "1", "--rounds", "50", "--delta", "1e-6", *NET],
        ["--records", "40", "--owners", "90", "--noise-multiplier", "1.5", *NET],
        ["--records", "5x9", "--epsilon", "8", "--record-rate", ".2", "--client-rate", ".5", *NET],
        ["--records", "5x9", "--epsilon", "8", "--record-clip", "2", *NET[:-1], "1"],
        ["--records", "5x9", "--epsilon", "8", *NET, "--architecture", "mlp"],
    ],
)
def test_plan_and_new_take_the_same_words_and_give_the_same_numbers(
    tmp_path: Path, wishes: list[str]
) -> None:
    path = tmp_path / "same.toml"
    assert new(path, *wishes).exit_code == 0
    planned, task = document("plan", *wishes)["task"], Task.load(path)
    assert planned["privacy"] == task.privacy.model_dump(exclude={"epsilon_limit"})
    training = planned["training"]
    assert training == task.training.model_dump(include={"learning_rate", "rounds"})
    assert f"training.learning_rate = {training['learning_rate']:g}" in said("plan", *wishes)
