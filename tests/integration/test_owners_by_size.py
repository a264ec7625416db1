"""Where bounds follow sizes: an owner's least and most ε, and what the worst owners do.

In the words and documents of `precad plan`, `account` and `task`.
"""

import re
from functools import partial
from pathlib import Path

import pytest
from tests.rig import commands
from tests.rig.documents import Document
from tests.rig.task_files import task_to_toml

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.guarantees import EXACT, guarantees
from precad.common.task import Task

planned = partial(commands.document, "plan")
SIZES = "50000,3x800,400,60"
WORDS = ["--records", SIZES, "--dimension", "50", "--noise-multiplier", "600"]
WORDS += ["--record-rate", "0.05", "--client-rate", "0.5", "--rounds", "20"]
WORDS += ["--record-clip", "1", "--client-clip", "90"]
BY_SIZE = [*WORDS, "--client-clip-per-record", "2"]


@pytest.fixture
def by_size(tmp_path: Path) -> Path:
    return written(tmp_path / "by-size.toml", {"per_record": 2.0, "most": 90.0})


def written(path: Path, clip: object) -> Path:
    """The task of those words, with another clip."""
    asked = planned(*BY_SIZE)["task"]
    assert asked["privacy"]["client_clip"] == {"per_record": 2.0, "most": 90.0}
    made = {
        "name": "by-size",
        "model": {"parameters": [{"name": "w", "shape": [50]}]},
        "privacy": asked["privacy"] | {"client_clip": clip},
        "training": asked["training"],
        "enrolment": {
            "clients": 6,
            "min_clients": 3,
            "max_expected_records": 5000.0,
            "planned_units": 52_860,
        },
        "fractional_bits": asked["fractional_bits"],
    }
    path.write_text(task_to_toml(Task.parse(made)), encoding="utf-8")
    return path


def of_owner(statements: list[Document]) -> tuple[float | None, float]:
    """Least and most exact ε of a whole owner."""
    (found,) = (
        (each["least_epsilon"], each["epsilon"])
        for each in statements
        if each["adversary"] == "client-level" and each["accountant"] == "exact"
    )
    return found


def epsilon_with(task: Task, clip: float) -> float:
    """Exact ε of an owner whose bound is this one, by the formula with R'/C_i."""
    values = task.model_dump(mode="json")
    values["privacy"]["client_clip"] = clip
    run = Run.of(Task.parse(values))
    ratio = task.mechanism.sensitivity / clip
    (found,) = guarantees(
        Run(
            record_rate=run.record_rate,
            client_rate=run.client_rate,
            noise_multiplier=run.noise_multiplier,
            rounds=run.rounds,
            sensitivity_ratio=ratio,
        ),
        task.privacy.delta,
        (Adversary.CLIENT_LEVEL,),
        EXACT,
    )
    return found.epsilon


def test_an_owner_has_the_epsilon_of_its_own_bound(by_size: Path) -> None:
    task = Task.load(by_size)
    # Of any owner that may enrol: 2·R for who samples one record or less, up to C.
    least, most = of_owner(
        commands.document("account", "--task", by_size)["guarantees"]
    )
    assert least == pytest.approx(epsilon_with(task, 2.0), rel=1e-6)
    assert most == pytest.approx(epsilon_with(task, 90.0), rel=1e-6)
    # Of those who are planned: 60 records, so three on average, and 50,000.
    least, most = of_owner(planned(*BY_SIZE)["statements"])
    assert least == pytest.approx(epsilon_with(task, 6.0), rel=1e-4)
    assert most == pytest.approx(epsilon_with(task, 90.0), rel=1e-4)


def test_both_are_printed_wherever_an_owners_epsilon_is(by_size: Path) -> None:
    between = re.compile(r"[0-9.]+ to [0-9.]+ by size")
    for words in (
        commands.said("account", "--task", by_size),
        commands.said("account", "--task", by_size, "--task", by_size),
        commands.said("plan", *BY_SIZE),
        commands.said("plan", "--task", by_size),
        commands.said("task", "show", by_size),
    ):
        assert between.search(words), words
    assert "client_clip = { per_record = 2.0, most = 90.0 }" in commands.said(
        "plan", "--task", by_size
    )
    shown = commands.said("task", "show", by_size)
    assert "2 for each record that it samples on average, for one at least" in shown


def test_one_clip_for_all_is_one_number_everywhere(tmp_path: Path) -> None:
    plain = written(tmp_path / "plain.toml", 90.0)
    assert (
        of_owner(commands.document("account", "--task", plain)["guarantees"])[0] is None
    )
    assert of_owner(planned(*WORDS)["statements"])[0] is None
    for words in (
        commands.said("account", "--task", plain),
        commands.said("plan", *WORDS),
        commands.said("task", "show", plain),
    ):
        assert "by size" not in words


def test_bad_owners_are_the_largest_ones_of_their_sizes() -> None:
    plain, by_size = (
        planned(*words, "--malicious", "3")["robustness"] for words in (WORDS, BY_SIZE)
    )
    assert 0.2 < by_size["loss_replacements"] < plain["loss_replacements"]
    # The largest alone is as bad as with one clip for all; who joins may claim any size.
    alone = [
        planned(*words, "--malicious", "1")["robustness"]["loss_replacements"]
        for words in (WORDS, BY_SIZE)
    ]
    assert alone[0] == pytest.approx(alone[1], rel=1e-6)
    assert by_size["loss_additions"] == plain["loss_additions"]
    found, before = by_size["certified"], plain["certified"]
    assert found["clients_added"] == before["clients_added"]
    assert found["clients_replaced"] >= before["clients_replaced"]


def test_owners_with_a_share_of_the_records_have_a_bound(by_size: Path) -> None:
    def share_of(words: list[object], share: str) -> Document:
        asked = planned(*words, "--data-share", share)
        found: Document = asked["robustness"]["data_share"]
        return found

    small, large = (share_of([*BY_SIZE], share) for share in ("0.01", "0.1"))
    # 528 records: the owners of 400 and of 60. A tenth: all but the largest.
    assert (small["owners"], large["owners"]) == (2, 5)
    assert 0.2 < small["loss"] < large["loss"] < 1
    # With one clip for all, small owners weigh as much as large ones.
    assert small["loss"] < share_of([*WORDS], "0.01")["loss"]
    # A task's file says no sizes: they are given beside it.
    beside = share_of(["--task", by_size, "--records", SIZES], "0.1")
    assert beside["loss"] == pytest.approx(large["loss"], rel=1e-6)
    words = commands.said("plan", *BY_SIZE, "--data-share", "0.1")
    assert "Owners with 10.0% of the records, at most 5, who turn bad: at most" in words
    for refused in (
        ("plan", *BY_SIZE, "--data-share", "0.0001"),
        ("plan", "--task", by_size, "--data-share", "0.1"),
    ):
        assert "data_share" in commands.refused(*refused)
