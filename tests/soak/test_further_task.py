"""docs/several-tasks.md, typed to the letter: a further task by kits, beside one that trains."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rig.consortium import set_up, task
from tests.rig.organisations import Organisation, organisations
from tests.rig.pages import Command, typed, written
from tests.rig.waiting import until

from precad.cli.local_deployment import task_to_toml

PAGE = "docs/several-tasks.md"
ROUNDS = 3


def status(west: Organisation, address: str) -> dict[str, Any]:
    said = west.type(f"precad status {address} --identity operator/keys --json")
    (line,) = [line for line in said if line.startswith('{"role"')]
    found: dict[str, Any] = json.loads(line)
    return found


def says(all_of_them: dict[str, Organisation], command: Command) -> bool:
    return command.says in "\n".join(all_of_them[command.title].type(command.text))


@pytest.mark.timeout(900)
def test_a_further_task_begins_by_the_page_alone_and_the_first_goes_on(tmp_path: Path) -> None:
    with organisations(tmp_path) as (all_of_them, _):
        west = all_of_them["West"]
        set_up(all_of_them)
        values = task().model_dump(mode="json", exclude_none=True)
        values |= {"name": "clinics", "training": values["training"] | {"rounds": ROUNDS}}
        west.write("clinics.toml", task_to_toml(type(task()).parse(values)))
        [(who, name, text)] = written(PAGE)
        all_of_them[who].write(name, text)
        until(lambda: status(west, "north.example:7301")["version"] >= 1)
        keys = {path: path.read_bytes() for path in tmp_path.glob("*/*/keys/*")}
        for command in typed(PAGE):
            # A part that was started anew takes a while to link up.
            until(partial(says, all_of_them, command), str(command))
        version = status(west, "north.example:7301")["version"]
        until(lambda: status(west, "north.example:7301")["version"] > version)
        facts = status(west, "north.example:7311")
        assert (facts["version"], facts["enrolled"]) == (ROUNDS, 3)
        # Nothing of the first task's was moved, made anew or lost.
        assert {path: path.read_bytes() for path in tmp_path.glob("*/*/keys/*")} == keys
        first, further = (
            tmp_path / "North" / "server-a" / name for name in ("state", "state/clinics")
        )
        assert (first / "state.db").is_file()
        assert (further / "state.db").is_file()
        assert (tmp_path / "North" / "server-a" / "journal" / "clinics").is_dir()
        # One account for what the records spend in both.
        lines = all_of_them["North"].type("precad ledger mine north-ward/state --json")
        account = json.loads("\n".join(lines[lines.index("{") : lines.index("}") + 1]))
        assert [each["versions"] for each in account["tasks"]][1] == ROUNDS
        assert account["epsilon"] > max(each["epsilon"] for each in account["tasks"])
