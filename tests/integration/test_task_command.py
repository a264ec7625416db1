"""`precad task` as a person runs it: made, checked, shown, and tried on records."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from numpy.typing import NDArray
from tests.rig import commands
from tests.rig.commands import document, precad, refused, said
from tests.rig.epsilons import record_epsilon
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import RECIPE

from precad.accounting.guarantees import planned_guarantees
from precad.cli.default_numbers import (
    AMPLIFIED,
    default_clip,
    default_rate,
    default_step,
)
from precad.cli.task_description import written
from precad.client.own_account import OwnAccount
from precad.common.task import Task
from precad.common.task_schema import Column, DataSection

NET = ["--architecture", "logistic", "--features", "64", "--classes", "10"]
WISHES = ["--records", "3x600", "--epsilon", "3", "--rounds", "50"]
FROM_RECIPE = ["--recipe", "columns.toml", *WISHES]
OWN = """import torch
from torch import nn
from torch.nn import functional

class Item(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 2)
    def forward(self, x):
        return self.line(x) * x.sum().item()

def fits(): return nn.Linear(4, 2)
def wide(): return nn.Linear(5, 2)
def three(): return nn.Linear(4, 3)
def compiled(): return torch.compile(nn.Linear(4, 2))
def lazy(): return nn.LazyLinear(2)
def odd(): return nn.Sequential(nn.Flatten(), nn.Conv1d(7, 1, 3))
def images(): return nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(6, 3))
def days(): return nn.Linear(1, 1)

def squares(outputs, targets, reduction="mean"):
    return functional.mse_loss(outputs.squeeze(-1), targets, reduction=reduction)
"""


def new(path: Path, *arguments: str) -> Result:
    return precad("task", "new", path, *arguments)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("new") / "three wards.toml"
    result = new(path, *NET, *WISHES)
    assert result.exit_code == 0, result.stderr
    return path


@pytest.fixture
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "columns.toml").write_text(RECIPE)
    (tmp_path / "nets_of_ours.py").write_text(OWN)
    (tmp_path / "ward.csv").write_text("age,ward,died\n" + "70,A,yes\n,C,no\n" * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_new_writes_loads_and_keeps_what_was_asked(
    made: Path, tmp_path: Path
) -> None:
    task = Task.load(made)
    privacy = task.privacy
    assert (task.name, task.dimension, task.training.rounds) == ("three-wards", 650, 50)
    assert (task.enrolment.clients, task.enrolment.min_clients) == (3, 2)
    # Few owners take part in every round; the limit is what was asked, and the plan
    # fits in it.
    assert (privacy.client_rate, privacy.epsilon_limit) == (1.0, 3.0)
    step = privacy.model_dump(include={"record_rate", "noise_multiplier", "delta"})
    assert 2.9 < record_epsilon(**step, participations=50) <= 3
    # Every field stands in it with a comment.
    lines = made.read_text().splitlines()
    keys = [place for place, line in enumerate(lines) if line and line[0].islower()]
    assert all(lines[place - 1].startswith("#") for place in keys)
    named = {lines[place].partition(" ")[0] for place in keys}
    assert named >= {"epsilon_limit", "work", "projections"}
    # Check names a mistake in it, and show says what holds.
    digest = str(task.digest)
    assert digest in said("task", "check", made)
    broken = tmp_path / "broken.toml"
    broken.write_text(made.read_text().replace("projections", "projektions"))
    assert "projektions" in refused("task", "check", broken)
    shown, answer = said("task", "show", made), document("task", "show", made)
    for words in (
        "against one curious server",
        "stop counting an owner at ε = 3",
        "2 to 3 owners",
    ):
        assert words in shown
    assert (answer["digest"], len(answer["statements"])) == (digest, 3)
    # Nor is it written over.
    before = made.read_bytes()
    assert "exists already" in refused("task", "new", made, *NET, *WISHES)
    assert made.read_bytes() == before


def test_what_is_written_is_the_task_whatever_its_columns_are_named(made: Path) -> None:
    task, names = Task.load(made), ("Überwachung", "𝛼 \N{SNOWMAN}", "a\x7fb")
    data = DataSection.model_validate(tomllib.loads(RECIPE)["data"])
    odd = data.model_copy(
        update={"columns": tuple(Column(name=name) for name in names)}
    )
    for update in ({}, {"projections": 60}, {"data": data}, {"data": odd}):
        changed = task.model_copy(update=update)
        assert Task.parse(tomllib.loads(written(changed, "head"))) == changed


@pytest.mark.parametrize("rate", ["1.0", "0.3"])
def test_the_limit_that_show_prints_lasts_to_the_end(
    made: Path, tmp_path: Path, rate: str
) -> None:
    """A number that is rounded to the nearest ends an owner's part after two rounds of
    four."""
    path = tmp_path / "odd.toml"
    text = made.read_text().replace(
        "noise_multiplier = ", "noise_multiplier = 7.123 # "
    )
    path.write_text(text.replace("client_rate = 1.0", f"client_rate = {rate}"))
    task = Task.load(path)
    said = precad("task", "show", path).stdout
    found = re.search(
        r"to the end with ([\d.]+) or more; .* same limit, ([\d.]+) or more", said
    )
    assert found, said
    for number, whole in ((found[1], True), (found[2], False)):
        own = OwnAccount(task, task.privacy.record_rate, float(number), None)
        assert (own.rounds_left(50) >= own.planned(), own.whole_task()) == (True, whole)


def test_the_check_of_norms_decides_what_is_said_of_cheating(
    made: Path, tmp_path: Path
) -> None:
    path = tmp_path / "proof.toml"
    assert new(path, *NET, *WISHES, "--validation", "proof").exit_code == 0
    task, other = Task.load(path), Task.load(made)
    assert (task.validation, other.validation) == ("proof", "crypten")
    assert task.proof is not None
    by_proof, by_shares = (said("task", "show", each) for each in (path, made))
    words = "For a record, against one malicious server, with any other clients"
    assert (words in by_proof, words in by_shares) == (True, False)
    assert "Nothing is claimed against a server that cheats" in by_shares
    # A longer update, and what an owner uploads: the proof too.
    assert (
        "passes with probability 9.1e-13 in all, for attackers who compute 2^60"
        in by_proof
    )
    assert "passes with probability 2^−40 a submission" in by_shares
    assert f"An owner uploads {64 + 8 * task.proof.body_words:,} bytes" in by_proof
    assert f"An owner uploads {32 + 8 * task.dimension:,} bytes" in by_shares
    *planned, capped = document("task", "show", path)["statements"]
    assert (len(planned), capped["basis"], capped["malicious_server"]) == (
        3,
        "cap",
        True,
    )
    # The limit that the task enforces holds at the cap too.
    assert planned[0]["epsilon"] <= capped["epsilon"] <= task.privacy.epsilon_limit


@pytest.mark.parametrize("rounds", [50, 53, 60, 70])
def test_what_is_said_to_be_added_to_delta_is_no_less(
    tmp_path: Path, rounds: int
) -> None:
    path = tmp_path / "proof.toml"
    wishes = [*WISHES[:-1], str(rounds), "--validation", "proof"]
    assert new(path, *NET, *wishes).exit_code == 0
    exact = planned_guarantees(Task.load(path))
    *rejections, last = [each.rejection_delta or 0.0 for each in exact]
    broken = exact[-1].advantage_delta or 0.0
    shown, plan, account = (
        precad(*command, path).stdout
        for command in (("task", "show"), ("plan", "--task"), ("account", "--task"))
    )
    (in_all,) = re.findall(r"with δ and (\S+) more", shown)
    *said, in_plan = map(float, re.findall(r"δ and (\S+) more", plan))
    assert min(float(in_all), in_plan) >= last + broken
    told = map(
        float,
        re.findall(r"(\S+) \((?:one-server|clients-only|client-level)\)", account),
    )
    for each in (said, told):
        assert all(a >= b for a, b in zip(each, rejections, strict=True))
    (by_breaking,) = re.findall(r"cryptography adds at most (\S+) for", account)
    assert float(by_breaking) >= broken


def test_a_wrong_wish_names_the_remedy(hospital: Path) -> None:
    own = [*WISHES, "--model"]
    (hospital / "bad.toml").write_text(RECIPE.replace("centre", "center"))
    for arguments, remedy in (
        (WISHES, "give either --architecture"),
        ([*NET, "--records", "3x600"], "give --epsilon"),
        ([*NET[:4], *WISHES], "give --classes"),
        (["--model", "json:dumps", *WISHES], "give MODULE:NAME"),
        (["--model", "builtins:dict", *WISHES], "torch.nn.Module"),
        ([*NET, *WISHES, "--owners", "3"], "leave --owners out"),
        ([*NET, *WISHES[2:], "--records", "3x500,1200,0x40"], "'0x40': is no size"),
        ([*NET, *WISHES[2:], "--records", "3x500,twelve"], "'twelve': is no size"),
        ([*NET, *WISHES[2:], "--records", "100001x5"], "at most 100,000"),
        ([*NET, *WISHES[2:], "--records", "9" * 5000], "like 10x6000"),
        ([*NET, *WISHES, "--name", "Drei Häuser"], "name"),
        # What the recipe says nothing else may.
        (
            [*FROM_RECIPE, "--model", "nets_of_ours:wide"],
            "takes no record of shape [4]",
        ),
        ([*FROM_RECIPE, "--model", "nets_of_ours:three"], "its target needs [1, 2]"),
        ([*FROM_RECIPE, *NET[:4]], "leave --features out"),
        (["--recipe", "bad.toml", *WISHES, *NET[:2]], "unknown key in bad.toml"),
        # What can't train.
        (
            [*own, "nets_of_ours:Item"],
            "an if on data), in nets_of_ours.py line 10, `return self.l",
        ),
        (
            [*own, "nets_of_ours:Item", "--features", "5"],
            "takes no record of shape [5]",
        ),
        (
            [*own, "nets_of_ours:compiled"],
            "torch.compile can't be trained record by record; give",
        ),
        ([*own, "nets_of_ours:lazy"], "its shapes aren't known yet"),
    ):
        assert remedy in refused("task", "new", hospital / "task.toml", *arguments)
        assert not (hospital / "task.toml").exists()
    odd = new(hospital / "task.toml", *own, "nets_of_ours:odd")
    assert (odd.exit_code, "the model wasn't tried" in odd.stderr) == (0, True)


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
    told = precad(*check, bad).stderr
    assert f"record 0 (line 2 of {bad}) = 'seventy': isn't a number" in told
    # A model of one's own is tried on records.
    own, fits = hospital / "own.toml", ("--model", "nets_of_ours:fits")
    assert new(own, *FROM_RECIPE, *fits).exit_code == 0
    tried = ("task", "check", own, "--data", "ward.csv")
    assert "--model to try them with your model" in said(*tried)
    assert "take every record" in said(*tried, *fits)
    assert "weight[2, 4]" in precad(*tried, "--model", "nets_of_ours:wide").stderr
    for more in (fits, ("--loss", "a:b")):
        assert "give --data too" in refused(*tried[:3], *more)


def test_a_number_that_is_learned_as_it_stands_is_warned_of(hospital: Path) -> None:
    """Thousands, at the step and the clip of numbers near 0, taught nothing."""
    recipe = hospital / "hours.toml"
    wishes = (*WISHES, "--architecture", "logistic", "--recipe", str(recipe))
    for target, warned in (
        ('{ name = "hours" }', True),
        ('{ name = "hours", centre = 1000, scale = 400 }', False),
    ):
        recipe.write_text(f'target = {target}\ncolumns = [{{ name = "age" }}]\n')
        path = hospital / f"hours-{warned}.toml"
        for told in (new(path, *wishes), precad("task", "check", path)):
            assert told.exit_code == 0
            assert ("target hours has neither centre" in told.stderr) is warned
    # A value that lies far out is asked about, as an input's is.
    (hospital / "hours.csv").write_text("age,hours\n" + "50,900\n" * 39 + "50,99999\n")
    told = precad("task", "check", path, "--data", hospital / "hours.csv")
    assert "column hours: 99999 lies 30 scales or more" in told.stderr


@pytest.mark.parametrize(
    ("records", "more", "clip", "rate", "warned"),
    [
        # An owner samples a record a round: at a twentieth ten bad owners of a thousand
        # took the model to chance, for they send always.
        ("1000x1", "", 1.0, 1.0, ""),
        ("30x4,2", "", 2.0, 0.25, ""),
        ("9x15", "", 2.0, 0.067, ""),
        ("3x30", "", 2.0, 0.05, ""),
        ("3x600", "--rounds 50", 12.0, 0.11, ""),
        ("9x200", "--client-clip 20", 20.0, 0.05, ""),
        # Ten times what an honest owner of one record can send arms attackers alone.
        (
            "1000x1",
            "--client-clip 10",
            10.0,
            1.0,
            "as 10 honest ones; make it 1 or less",
        ),
        (
            "9x200",
            "--client-clip 25",
            25.0,
            0.05,
            "as 2.5 honest ones; make it 20 or less",
        ),
        (
            "1000x1",
            "--record-rate .05",
            1.0,
            0.05,
            "as 20 honest ones; raise record_rate",
        ),
    ],
)
def test_an_owner_sends_a_record_a_round_and_what_arms_attackers_is_warned_of(
    tmp_path: Path, records: str, more: str, clip: float, rate: float, warned: str
) -> None:
    path = tmp_path / "task.toml"
    made = new(path, *NET, "--records", records, *more.split(), "--epsilon", "3")
    assert made.exit_code == 0, made.output
    privacy = Task.load(path).privacy
    assert (privacy.client_clip, privacy.record_rate) == (clip, rate)
    assert (warned in made.stderr, "weighs" in made.stderr) == (True, bool(warned))
    for command in ("show", "check"):
        said = precad("task", command, path).stderr
        assert ("arms attackers alone" in said) is (clip == 10.0)


@pytest.mark.parametrize(
    "wishes",
    [
        "3x600 --epsilon 3",
        "500,3x20 --epsilon 1 --rounds 50 --delta 1e-6",
        "40 --owners 90 --noise-multiplier 1.5",
        "5x9 --epsilon 8 --record-rate .2 --client-rate .5",
        "5x9 --epsilon 8 --record-clip 2 --classes 1",
        "5x9 --epsilon 8 --architecture mlp",
    ],
)
def test_plan_and_new_give_the_same_numbers(tmp_path: Path, wishes: str) -> None:
    path = tmp_path / "same.toml"
    asked = [*map(str, commands.instead(NET, "--records", *wishes.split()))]
    assert new(path, *asked).exit_code == 0
    planned, task = document("plan", *asked)["task"], Task.load(path)
    assert planned["privacy"] == task.privacy.model_dump(exclude={"epsilon_limit"})
    training = planned["training"]
    assert training == task.training.model_dump(include={"learning_rate", "rounds"})
    assert f"training.learning_rate = {training['learning_rate']:g}" in said(
        "plan", *asked
    )


OWNERS = ["--unit", "owner", "--records", "500x60", "--epsilon", "4"]


def test_whole_owners_are_planned_for_with_the_noise_that_they_take(
    tmp_path: Path,
) -> None:
    path = tmp_path / "owners.toml"
    made = new(path, *NET, *OWNERS, "--local-epochs", "3", "--local-batch", "20")
    assert made.exit_code == 0, made.output
    assert "noise is 0.78 of the sum of all updates" in made.stderr
    task = Task.load(path)
    assert task.local is not None
    assert (task.local.epochs, task.local.batch_size) == (3, 20)
    privacy = task.privacy
    assert privacy.record_clip == privacy.client_clip
    # As much noise as T full steps take: nothing is sampled, and q = 1.
    assert privacy.noise_multiplier == pytest.approx(10.8, abs=0.05)
    assert (task.mechanism.unit_rate, privacy.client_rate) == (1.0, 1.0)
    assert (task.training.rounds, task.enrolment.planned_units) == (100, 500)
    assert "for an owner against one curious server" in " ".join(
        path.read_text("utf-8").replace("# ", "").split()
    )
    shown = precad("task", "show", path)
    assert "what an owner's records say, not that it takes part" in shown.stdout
    assert "noise is 0.78" in shown.stderr
    plan = ("plan", *NET, *OWNERS, "--local-epochs", "3")
    assert document(*plan)["task"]["local"]["epochs"] == 3
    planned = said(*plan)
    for written_as in (
        "local.epochs = 3",
        "noise_multiplier = 10.82",
        "gives an owner",
    ):
        assert written_as in planned


def test_a_unit_at_two_owners_is_planned_for(tmp_path: Path) -> None:
    path = tmp_path / "patients.toml"
    unit = ["--unit", "patient", "--most-records-per-unit", "5"]
    alone = new(tmp_path / "one.toml", *NET, *WISHES, *unit)
    assert alone.exit_code == 0, alone.output
    made = new(path, *NET, *WISHES, *unit, "--owners-per-unit", "2")
    assert made.exit_code == 0, made.output
    task = Task.load(path)
    assert (task.mechanism.unit, task.mechanism.most_records_per_unit) == ("patient", 5)
    at_two = planned_guarantees(task)[0]
    assert at_two.epsilon_at_one < at_two.epsilon <= 3
    # Of a round's mean, whatever is sampled.
    one = Task.load(tmp_path / "one.toml").privacy
    noise = one.noise_multiplier / one.record_rate
    assert task.privacy.noise_multiplier / task.privacy.record_rate > noise
    # The comment at the head names the unit.
    assert "for a patient" in " ".join(
        path.read_text("utf-8").replace("# ", "").split()[:60]
    )
    planned = said("plan", *NET, *WISHES, *unit, "--owners-per-unit", "2")
    assert 'privacy.unit = "patient"' in planned
    assert "privacy.owners_per_unit = 2" in planned


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ("--local-epochs 2", "only whole owners train by themselves"),
        ("--unit patient", "most_records_per_unit"),
        ("--unit owner --record-rate .5", "privacy.record_rate = 0.5: must be 1"),
        ("--unit owner --owners-per-unit 2", "an owner is one"),
        ("--unit owner --client-clip-per-record 2", "all owners weigh alike"),
        ("--unit owner --most-records-per-unit 2", "goes with privacy.unit"),
    ],
)
def test_units_that_dont_fit_are_refused(
    tmp_path: Path, wishes: str, says: str
) -> None:
    asked = [*NET, *WISHES, *wishes.split()]
    assert says in refused("task", "new", tmp_path / "no.toml", *asked)


# Whole tasks beside a grid of q, p, C and η, by benchmarks/default_settings.py.
RESULT = Path(__file__).parents[2] / "benchmarks/results/default_settings.json"


def test_the_defaults_are_within_two_points_of_the_best_of_the_comparison() -> None:
    rows = json.loads(RESULT.read_text("utf-8"))["cases"].values()
    near = [row["best"]["score"] - row["default"]["score"] <= 2 for row in rows]
    assert len(near) >= 10
    assert sum(near) >= 0.9 * len(near)
    assert {row["case"]["records"] for row in rows} >= {"1000x1", "200x7"}
    for row in rows:
        case, default = row["case"], row["default"]
        kind = "classes, hidden layers" if case["hidden"] else "classes"
        step = default_step(
            expected_records=default["record_rate"] * row["planned_units"],
            record_rate=default["record_rate"],
            noise_multiplier=default["noise_multiplier"],
            rounds=case["rounds"],
            record_clip=1.0,
            kind="regression" if case["data"] in {"area", "diabetes"} else kind,
        )
        assert default["learning_rate"] == pytest.approx(
            step * (0.1 if case["warm"] else 1), rel=0.06
        )
        sizes = re.findall(r"[0-9]+(?=,|$)", case["records"])
        largest = max(map(int, sizes))
        rate = default["record_rate"]
        usual = default_rate(largest)
        assert (default["client_rate"], rate >= usual) == (1.0, True)
        assert default["noise_multiplier"] >= AMPLIFIED
        assert default["client_clip"] == default_clip(1.0, largest, rate)


def test_a_large_epsilon_in_few_rounds_samples_more_records(tmp_path: Path) -> None:
    """At p = .05 the noise of a round's mean would be four times the least there is."""
    asked = [*NET, "--records", "5x1200", "--epsilon", "8", "--rounds", "20"]
    found = {}
    for name, more in (("usual", ""), ("few", ".05"), ("all", "1")):
        rate = ["--record-rate", more] if more else []
        assert new(tmp_path / name, *asked, *rate).exit_code == 0
        privacy = Task.load(tmp_path / name).privacy
        found[name] = privacy.noise_multiplier / privacy.record_rate
        if not more:
            assert privacy.noise_multiplier >= AMPLIFIED
            assert privacy.record_rate < 1
    assert found["usual"] < 1.5 * found["all"]
    assert found["few"] > 4 * found["all"]
    calm = tmp_path / "calm"
    assert new(calm, *NET, "--records", "5x1200", "--epsilon", "3").exit_code == 0
    assert Task.load(calm).privacy.record_rate == 0.05


@pytest.mark.parametrize(
    ("wishes", "rate", "drawn", "cost"),
    [
        ("1000x1", 1.0, "1,000 of 1,000 owners: about 14 s and 5.2 MB", ""),
        ("200x7", 1.0, "200 of 200 owners: about 3.7 s", ""),
        (
            "20000x7",
            0.22,
            "4,400 of 20,000 owners: about 60 s",
            "noise is that of ε = 0",
        ),
        (
            "1000x1 --client-rate .02",
            0.02,
            "20 of 1,000 owners",
            "noise is that of ε = 0.2 ",
        ),
        (
            "3x600 --record-rate .01",
            0.01,
            "3 of 3 owners",
            "and record_rate 0.05, for ε = 3",
        ),
        ("3x600 --record-rate .2", 0.2, "3 of 3 owners", ""),
    ],
)
def test_everybody_is_drawn_and_what_fewer_cost_is_said(
    tmp_path: Path, wishes: str, rate: float, drawn: str, cost: str
) -> None:
    path = tmp_path / "task.toml"
    asked = [*NET, "--epsilon", "3", "--records", *wishes.split()]
    made = new(path, *asked)
    assert made.exit_code == 0, made.stderr
    privacy = Task.load(path).privacy
    assert rate in {privacy.client_rate, privacy.record_rate}
    assert f"A round draws {drawn}" in made.stdout
    for told in (made, precad("plan", *asked)):
        assert (cost in told.stderr, "cost accuracy" in told.stderr) == (
            True,
            bool(cost),
        )


def test_the_smaller_epsilon_that_is_said_leaves_as_much_noise(tmp_path: Path) -> None:
    few, equal = tmp_path / "few.toml", tmp_path / "equal.toml"
    asked = [*NET, "--records", "400x1", "--rounds", "50"]
    told = new(few, *asked, "--epsilon", "3", "--client-rate", ".1").stderr
    (epsilon,) = re.findall(r"noise is that of ε = (\S+) with", told)
    assert new(equal, *asked, "--epsilon", epsilon).exit_code == 0
    by_record = [
        privacy.noise_multiplier / privacy.client_rate / privacy.record_rate
        for privacy in (Task.load(path).privacy for path in (few, equal))
    ]
    assert by_record[0] == pytest.approx(by_record[1], rel=0.05)


def test_noise_that_covers_what_records_can_teach_is_said_with_what_would_do(
    tmp_path: Path,
) -> None:
    """ε = .01 of 650 records was planned in silence, and gave a model of noise."""
    path = tmp_path / "task.toml"
    net = ["--architecture", "logistic", "--features", "30", "--classes", "2"]

    def told(records: object, epsilon: object) -> str:
        path.unlink(missing_ok=True)
        made = new(path, *net, f"--records={records}", f"--epsilon={epsilon}")
        assert made.exit_code == 0, made.stderr
        return " ".join(made.stderr.split())

    said = told(650, 0.01)
    found = re.search(r"noise of all rounds is (\S+) times what 650 records", said)
    assert found is not None
    assert float(found[1]) > 1
    asked = (*net, "--records", 650, "--epsilon", 0.01)
    for command in (("task", "check", path), ("task", "show", path), ("plan", *asked)):
        assert found[0] in " ".join(precad(*command).stderr.split())
    assert found[0] in precad("plan", "--task", path).stderr
    remedy = re.search(r"takes ε = (\S+), or (\S+) records at this ε", said)
    assert remedy is not None
    # Either is enough, and hardly more than that.
    epsilon, records = float(remedy[1]), int(remedy[2].replace(",", ""))
    for wanted, enough in ((1.02, True), (0.9, False)):
        assert ("all rounds" not in told(650, epsilon * wanted)) is enough
        assert ("all rounds" not in told(round(records * wanted), 0.01)) is enough
    # What the pages plan is far from it.
    assert "all rounds" not in told("3x400", 1)


def test_noise_is_said_of_units_and_not_of_answers_or_of_an_unknown_plan(
    tmp_path: Path,
) -> None:
    path = tmp_path / "task.toml"
    few = [*NET, "--records", "40", "--epsilon", ".05"]
    made = new(path, *few, "--unit", "patient", "--most-records-per-unit", "3")
    assert "what 40 patients add up" in made.stderr
    values = Task.load(path).model_dump(mode="json")
    values["enrolment"]["planned_units"] = None
    values["training"]["compact_release"] = False
    path.write_text(task_to_toml(Task.parse(values)), encoding="utf-8")
    assert "all rounds" not in precad("task", "check", path).stderr


# Records of which `precad task check --data` says whether they can be used

RECORDS, FEATURES = 40, 8
REAL = """[data]
target = { name = "days", centre = 10, scale = 5 }
columns = [{ name = "age", centre = 60, scale = 20 }]
"""
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "real.toml").write_text(REAL)
    (folder / "nets_of_checks.py").write_text(OWN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, wanted in {
            "arrays": (*NET[:3], str(FEATURES), "--classes", "3"),
            "table": ("--recipe", "recipe.toml", *NET[:2]),
            "images": ("--model", "nets_of_checks:images"),
            "days": ("--recipe", "real.toml", "--model", "nets_of_checks:days"),
        }.items():
            made = precad("task", "new", f"{name}.task", *wanted, *WISHES)
            assert made.exit_code == 0, made.stderr
    return folder


@pytest.fixture
def at(tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tasks)
    return tmp_path


def check(kind: str, write: Change, at: Path) -> Result:
    task, ending, *more = kind.split()
    write(at / f"ward.{ending}")
    return precad(
        "task", "check", f"{task}.task", "--data", at / f"ward.{ending}", *more
    )


def inputs(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).random(
        (RECORDS, *(shape or (FEATURES,))), np.float32
    )


def labels() -> NDArray[np.int64]:
    return np.arange(RECORDS) % 3


def rows(**changes: Sequence[object]) -> pd.DataFrame:
    usual = {
        "age": [70.0, None] * 20,
        "ward": ["A", "Z"] * 20,
        "died": ["yes", "no"] * 20,
    }
    return pd.DataFrame(usual | changes)


def arrays(
    x: NDArray[np.generic] | None = None, y: NDArray[np.generic] | None = None
) -> Change:
    return lambda path: np.savez(
        path, x=inputs() if x is None else x, y=labels() if y is None else y
    )


def table(**changes: Sequence[object]) -> Change:
    return lambda path: rows(**changes).to_parquet(path)


DAYS = pd.DataFrame({"age": [70.0, 50.0] * 20, "days": [3.0, 12.5] * 20}).to_parquet
IMAGES, OF_DAYS = (
    f"{each} --model nets_of_checks:" for each in ("images npz", "days parquet")
)
MANY = arrays(x=np.zeros((9000, FEATURES)), y=np.zeros(9000, np.int64))
HALVES = arrays(x=(9 * inputs()).astype(np.float16), y=labels().astype(np.int32))


@pytest.mark.parametrize(
    ("kind", "write", "said"),
    [
        (
            "arrays npz",
            HALVES,
            "40 records, each float32[8]; take every record; 27 parameters",
        ),
        (
            "images npz",
            arrays(x=inputs(1, 2, 4)),
            "records of shape [1, 2, 4]; give --model",
        ),
        (f"{IMAGES}images", arrays(x=inputs(1, 2, 4)), "take every record"),
        ("table parquet", table(), "40 records, each float32[4]; take every record"),
        ("table npz", arrays(x=inputs(4), y=labels() % 2), "take every record"),
        (f"{OF_DAYS}days --loss nets_of_checks:squares", DAYS, "take every record"),
        (f"{OF_DAYS}days", DAYS, "take every record"),
    ],
)
def test_records_that_can_be_used_are_taken(
    kind: str, write: Change, said: str, at: Path
) -> None:
    found = check(kind, write, at)
    assert (found.exit_code, said in found.stdout) == (0, True), found.output


@pytest.mark.parametrize(
    ("kind", "write", "said"),
    [
        (
            "arrays npz",
            arrays(x=inputs(FEATURES - 1)),
            "a record's input is float32[7]",
        ),
        ("arrays npz", arrays(x=inputs()[:0], y=labels()[:0]), "records = 0"),
        (
            "arrays npz",
            arrays(y=labels() + 1),
            "target of record 2 = 3: the model has 3 classes",
        ),
        (
            "arrays npz",
            lambda path: np.savez(path, x=inputs()),
            "has no array y, but x: save x and",
        ),
        ("arrays npz", MANY, "passes the task's enrolment.max_expected_records"),
        (
            "arrays npz",
            lambda path: path.write_bytes(b"PK\x03\x04"),
            "can't be read as arrays of",
        ),
        (
            "table parquet",
            table(age=["70"] * 39 + ["old"]),
            "column age, record 39 = 'old': isn't",
        ),
        (
            "table parquet",
            lambda path: path.write_bytes(b"PAR1"),
            "can't be read as Parquet",
        ),
        ("table parquet", lambda path: path, "there is no such file"),
        ("arrays csv", rows().to_csv, "the task has no [data]"),
        (
            "arrays npy",
            lambda path: np.save(path, inputs()),
            "a .npz file with arrays x and y",
        ),
        (
            f"{IMAGES}images",
            arrays(x=inputs(2, 4, 1)),
            "a record's input is float32[2, 4, 1]",
        ),
        (f"{OF_DAYS}days --loss nets_of_checks:cubes", DAYS, "give MODULE:NAME"),
    ],
)
def test_unusable_records_are_named(
    kind: str, write: Change, said: str, at: Path
) -> None:
    """Which values can't: tests/client/test_records.py."""
    found = check(kind, write, at)
    assert (found.exit_code, said in found.stderr) == (2, True), found.output
    assert "ward." in found.stderr or "--loss" in kind or "data, " in found.stderr
    # A sentence, and no wrapper's text in it.
    assert len([line for line in found.stderr.splitlines() if line[0] != "✓"]) == 1
    for word in ("Traceback", "np.float", "Errno"):
        assert word not in found.stderr
