"""`precad join --dataset`: a public data set in the records' place, dealt to the owners."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.rig.warm import forked

from precad.cli.join import _named, _part
from precad.cli.local_deployment import LocalDeployment, environment_of_parts
from precad.cli.main import app
from precad.common.identifiers import ClientId
from precad.common.task import Task
from precad.simulation.datasets import load
from precad.simulation.demo_tasks import demo_task


def test_parts_are_all_records_once() -> None:
    data = load("digits")
    parts = [_named("digits", None, *_part(f"{place}/3")) for place in (1, 2, 3)]
    assert sum(len(y) for _, y in parts) == len(data.train_y)
    rows = np.concatenate([x.reshape(len(x), -1) for x, _ in parts])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, data.train_x.reshape(len(rows), -1)))
    whole, _ = _named("digits", None, 1, 1)
    assert len(whole) == len(data.train_y)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["--part", "1/3"], "name the data set"),
        (["--data", "."], "name the data set"),
        (["--dataset", "digits", "--part", "4/3"], "give 3/10"),
        (["--dataset", "digits", "--part", "third"], "give 3/10"),
        (["--dataset", "mnist"], "name the folder that holds mnist"),
        (["--dataset", "imagenet"], "use one of digits"),
    ],
)
def test_a_mistake_names_the_remedy(arguments: list[str], remedy: str) -> None:
    ended = CliRunner().invoke(app, ["join", "--config", "owner.toml", *arguments])
    assert ended.exit_code == 2
    assert remedy in ended.stderr


def test_owners_train_on_their_parts(tmp_path: Path) -> None:
    values = demo_task(load("digits"), "logistic", 2, rounds=2)
    names = [ClientId("ward-1"), ClientId("ward-2")]
    # Records that would be refused: the data set stands in their place.
    nothing = (np.zeros((0, 64), np.float32), np.zeros(0, np.int64))
    log = tmp_path / "owners.log"
    with LocalDeployment(
        tmp_path, Task.parse(values), dict.fromkeys(names, nothing), popen=forked
    ) as running:
        running.start_servers()
        configs = [part for name in names for part in ("--config", str(tmp_path / f"{name}.toml"))]
        with log.open("wb") as file:
            owners = forked(
                [sys.executable, "-m", "precad", "join", "--dataset", "digits", *configs],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment_of_parts(),
                process_group=None,
            )
        assert owners.wait() == 0, log.read_text()
    assert log.read_text().count("2 submissions, 2 counted") == 2
