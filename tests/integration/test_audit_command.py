"""`precad audit`: a sound build isn't refuted, broken ones are, and the exit status says so."""

import json

from typer.testing import CliRunner

from precad.cli.audit import REFUTED
from precad.cli.main import app
from precad.experiments.audit.designed import LOUDER, designed
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
