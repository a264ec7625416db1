"""`precad audit`: a sound build isn't refuted, broken ones are, and the exit status says so."""

import json

import pytest
from click.testing import CliRunner

from precad.cli.audit.command import REFUTED
from precad.cli.main import app
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.experiments.audit.designed import LOUDER, designed
from precad.experiments.audit.own_task import require_own
from precad.experiments.audit.run import Repetition, audit, planned
from precad.experiments.audit.simulated import Build, train

CANARIES = 600
SEED = 5


def verdicts(build: Build, canaries: int = CANARIES) -> dict[str, bool]:
    one = designed(canaries, SEED, LOUDER)
    trained = train(one.task, one.shares, one.canaries, build_of=build, seed=SEED)
    plans = planned(one.task, canaries, 1)
    found = audit(plans, [Repetition(trained, one.shares, one.canaries)])
    return {verdict.statement.name: verdict.refuted for verdict in found}


def test_a_sound_build_is_not_refuted() -> None:
    assert verdicts(Build.SOUND) == {"models": False, "one server": False}


def test_a_server_without_noise_is_found_by_the_other_one_alone() -> None:
    assert verdicts(Build.OTHER_SILENT) == {"models": False, "one server": True}


def test_records_that_are_not_clipped_are_found_by_whoever_sees_the_models() -> None:
    assert verdicts(Build.UNCLIPPED, 1000)["models"]


def test_the_command_says_what_is_stated_and_what_was_learnt_and_fails() -> None:
    arguments = ["--canaries", str(CANARIES), "--build", "other-silent", "--seed", str(SEED)]
    done = CliRunner().invoke(app, ["audit", *arguments, "--json"])
    assert done.exit_code == REFUTED, done.output
    document = json.loads(done.stdout)
    by_view = {verdict["view"]: verdict for verdict in document["verdicts"]}
    assert by_view["one server"]["refuted"]
    assert by_view["one server"]["epsilon_at_least"] >= by_view["one server"]["epsilon_stated"]
    assert document["simulated"]


def test_of_real_processes_one_without_noise_is_found_by_the_other_one_alone() -> None:
    # Who sees the models alone has the other server's noise before it: that half is sound.
    arguments = ["--deployed", "--canaries", "400", "--build", "other-silent", "--seed", str(SEED)]
    done = CliRunner().invoke(app, ["audit", *arguments, "--json"])
    assert done.exit_code == REFUTED, done.output
    document = json.loads(done.stdout)
    refuted = {verdict["view"]: verdict["refuted"] for verdict in document["verdicts"]}
    assert refuted == {"models": False, "one server": True}
    assert not document["simulated"]


def test_a_build_that_no_process_plays_is_refused_by_name() -> None:
    done = CliRunner().invoke(app, ["audit", "--deployed", "--build", "redrawn"])
    assert done.exit_code not in (0, REFUTED)
    assert "redrawn" in done.output


def test_what_watches_refuses_a_task_that_is_not_an_audits() -> None:
    task = designed(50, SEED).task
    require_own(task, "127.0.0.1:7301")
    with pytest.raises(Misconfiguration, match=r"other\.example"):
        require_own(task, "other.example:7301")
    with pytest.raises(Misconfiguration, match="wards"):
        require_own(Task.parse(task.model_dump(mode="json") | {"name": "wards"}))
