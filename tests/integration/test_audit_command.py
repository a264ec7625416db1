"""`precad audit`: a sound build isn't refuted, broken ones are, and the exit status says so."""

import json

import pytest
from click.testing import CliRunner

from precad.cli.audit.command import REFUTED
from precad.cli.main import app
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.experiments.audit.builds import Build
from precad.experiments.audit.designed import LOUDER, designed
from precad.experiments.audit.own_task import require_own
from precad.experiments.audit.run import Repetition, audit, planned
from precad.experiments.audit.simulated import train

CANARIES, ROUNDS = 400, 4
SEED = 5


def verdicts(build: Build, rounds: int = ROUNDS) -> dict[str, bool]:
    one = designed(CANARIES, rounds, SEED, LOUDER)
    trained = train(one.task, one.shares, one.canaries, build_of=build, seed=SEED)
    found = audit(planned(one, 1, build=build), [Repetition(trained, one.shares, one.canaries)])
    return {verdict.statement.name: verdict.refuted for verdict in found}


def test_a_sound_build_is_not_refuted() -> None:
    assert verdicts(Build.SOUND) == {"models": False, "one server": False}


def test_a_server_without_noise_is_found_by_the_other_one_alone() -> None:
    assert verdicts(Build.OTHER_SILENT) == {"models": False, "one server": True}


def test_records_that_are_not_clipped_are_found_by_whoever_sees_the_models() -> None:
    assert verdicts(Build.UNCLIPPED)["models"]


def test_noise_that_is_drawn_anew_is_found_by_the_server_that_looks_again() -> None:
    assert verdicts(Build.REDRAWN, 10) == {"models": False, "one server": True}


def test_the_command_says_what_is_stated_and_what_was_learnt_and_fails() -> None:
    arguments = ["--canaries", str(CANARIES), "--build", "other-silent", "--seed", str(SEED)]
    done = CliRunner().invoke(app, ["audit", *arguments, "--json"])
    assert done.exit_code == REFUTED, done.output
    document = json.loads(done.stdout)
    by_view = {verdict["view"]: verdict for verdict in document["verdicts"]}
    assert by_view["one server"]["refuted"]
    assert by_view["one server"]["build_caught"] == 1.0
    assert by_view["one server"]["epsilon_at_least"] >= by_view["one server"]["epsilon_stated"]
    assert "caught so in 100% of 20 trials" in done.stderr
    assert document["simulated"]


def test_a_build_that_this_audit_has_not_is_refused_by_name() -> None:
    done = CliRunner().invoke(app, ["audit", "--build", "unchecked"])
    assert done.exit_code not in (0, REFUTED)
    assert "unchecked" in done.output


def test_an_owner_for_each_of_a_thousand_processes_is_refused_with_what_to_do() -> None:
    arguments = ["--presence", "--deployed", "--canaries", "1000"]
    done = CliRunner().invoke(app, ["audit", *arguments])
    assert done.exit_code not in (0, REFUTED)
    assert "--rounds" in done.output


def test_what_watches_refuses_a_task_that_is_not_an_audits() -> None:
    task = designed(50, 1, SEED).task
    require_own(task, "127.0.0.1:7301")
    with pytest.raises(Misconfiguration, match=r"other\.example"):
        require_own(task, "other.example:7301")
    with pytest.raises(Misconfiguration, match="wards"):
        require_own(Task.parse(task.model_dump(mode="json") | {"name": "wards"}))
