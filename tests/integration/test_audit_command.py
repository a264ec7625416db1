"""`precad audit`: a sound build isn't refuted, broken ones are, and the exit status says so."""

import json

import pytest
from click.testing import CliRunner
from tests.rig.warm import forked

from precad.audit import simulated
from precad.audit.builds import Build
from precad.audit.designed import LOUDER, Designed, designed
from precad.audit.own_task import require_own
from precad.audit.run import Repetition, audit, planned
from precad.audit.simulated import Audited
from precad.cli.audit import deployed
from precad.cli.audit.command import REFUTED
from precad.cli.main import app
from precad.common.errors import Misconfiguration
from precad.common.task import Task

CANARIES, ROUNDS = 400, 4
SEED = 5


def verdicts(made: Designed, trained: Audited, build: Build) -> dict[str, bool]:
    plans = planned(made, 1, build=build)
    found = audit(plans, [Repetition(trained, made.shares, made.canaries)])
    return {verdict.statement.name: verdict.refuted for verdict in found}


@pytest.mark.parametrize(
    ("build", "rounds", "models", "one_server"),
    [
        (Build.SOUND, ROUNDS, False, False),
        # The other server alone finds that one has no noise.
        (Build.OTHER_SILENT, ROUNDS, False, True),
        # Whoever sees the models finds records that aren't clipped.
        (Build.UNCLIPPED, ROUNDS, True, True),
        # The server that looks again finds noise that is drawn anew.
        (Build.REDRAWN, 10, False, True),
    ],
)
def test_a_fault_is_found_by_whom_it_concerns(
    build: Build,
    rounds: int,
    models: bool,  # noqa: FBT001 -- a column
    one_server: bool,  # noqa: FBT001
) -> None:
    made = designed(CANARIES, rounds, SEED, LOUDER)
    trained = simulated.train(made.task, made.shares, made.canaries, build_of=build, seed=SEED)
    assert verdicts(made, trained, build) == {"models": models, "one server": one_server}


def test_a_fault_of_real_processes_is_found_too() -> None:
    """One round; every fault and more rounds: tests/soak/test_audit_processes.py."""
    made = designed(CANARIES, 1, SEED, LOUDER)
    trained = deployed.train(made, build_of=Build.OTHER_SILENT, popen=forked)
    assert verdicts(made, trained, Build.OTHER_SILENT) == {"models": False, "one server": True}


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--build", "unchecked"], "unchecked"),
        # An owner for each of a thousand processes.
        (["--presence", "--deployed", "--canaries", "1000"], "--rounds"),
    ],
)
def test_what_cannot_be_audited_is_refused_with_what_to_do(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["audit", *arguments])
    assert done.exit_code not in (0, REFUTED)
    assert said in done.output


def test_what_watches_refuses_a_task_that_is_not_an_audits() -> None:
    task = designed(50, 1, SEED).task
    require_own(task, "127.0.0.1:7301")
    with pytest.raises(Misconfiguration, match=r"other\.example"):
        require_own(task, "other.example:7301")
    with pytest.raises(Misconfiguration, match="wards"):
        require_own(Task.parse(task.model_dump(mode="json") | {"name": "wards"}))
