"""`precad audit`: a sound build isn't refuted, broken ones are, and the exit status says so."""

import json
from typing import Any

import numpy as np
import pytest
from research.audits import builds, deployed
from research.audits.builds import Build, less_noise
from research.audits.canary_owners import require_own
from tests.rig.commands import precad
from tests.rig.warm import forked

from precad.audit import canary_training
from precad.audit.canary_training import Audited, Designed, audit, designed, planned
from precad.cli.simulate_command import REFUTED
from precad.common.errors import Misconfiguration
from precad.common.ring import RingVector
from precad.common.task import Task

CANARIES, ROUNDS = 400, 4
SEED = 5


def verdicts(made: Designed, trained: Audited, build: Build) -> tuple[bool, ...]:
    """Whether who sees the models, and whether one server, refutes what is stated."""
    found = audit(planned(made, 1, less=less_noise(build)), [(trained, made)])
    by_view = {verdict.statement.name: verdict.refuted for verdict in found}
    assert len(by_view) == 2
    return by_view["models"], by_view["one server"]


@pytest.mark.parametrize(
    ("build", "rounds", "refuted"),
    [
        (Build.SOUND, ROUNDS, (False, False)),
        # The other server alone finds that one has no noise.
        (Build.OTHER_SILENT, ROUNDS, (False, True)),
        # Whoever sees the models finds records that aren't clipped.
        (Build.UNCLIPPED, ROUNDS, (True, True)),
        # The server that looks again finds noise that is drawn anew.
        (Build.REDRAWN, 10, (False, True)),
    ],
)
def test_a_fault_is_found_by_whom_it_concerns(
    build: Build, rounds: int, refuted: tuple[bool, bool]
) -> None:
    made = designed(CANARIES, rounds, SEED)
    assert verdicts(made, builds.train(made, build, SEED), build) == refuted


def test_a_fault_of_real_processes_is_found_too() -> None:
    """One round; every fault and more rounds: tests/soak/test_audit_processes.py."""
    made = designed(CANARIES, 1, SEED)
    trained = deployed.train(made, build_of=Build.OTHER_SILENT, popen=forked)
    assert verdicts(made, trained, Build.OTHER_SILENT) == (False, True)


def test_the_command_says_what_is_stated_and_learnt_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = canary_training.train

    def silent(*arguments: Any, seed: int) -> Audited:
        def nothing(_draws: object, _version: int, dimension: int) -> tuple[RingVector, RingVector]:
            return np.zeros(dimension, np.int64), np.zeros(dimension, np.int64)

        return sound(*arguments, seed=seed, server_a_noise=nothing)

    monkeypatch.setattr(canary_training, "train", silent)
    arguments = ["--canaries", str(CANARIES), "--seed", str(SEED)]
    done = precad("audit", *arguments, "--json")
    assert done.exit_code == REFUTED, done.output
    document = json.loads(done.stdout)
    (one,) = (each for each in document["verdicts"] if each["view"] == "one server")
    assert one["refuted"]
    assert one["epsilon_at_least"] >= one["epsilon_stated"]
    assert "half the noise" in done.stderr
    assert document["simulated"]


def test_what_watches_refuses_a_task_that_is_not_an_audits() -> None:
    task = designed(50, 1, SEED).task
    require_own(task, "127.0.0.1:7301")
    with pytest.raises(Misconfiguration, match=r"other\.example"):
        require_own(task, "other.example:7301")
    with pytest.raises(Misconfiguration, match="wards"):
        require_own(Task.parse(task.model_dump(mode="json") | {"name": "wards"}))
