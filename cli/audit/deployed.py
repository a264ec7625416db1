"""An audited training by real processes: dealer, both servers and every owner, over localhost."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import numpy as np

from precad.cli.audit.watched_server import file_of
from precad.client.train import Records
from precad.common.errors import Misconfiguration, PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.experiments.audit.designed import Designed
from precad.experiments.audit.own_task import NAME
from precad.experiments.audit.simulated import AUDITED, Audited, Build, denominator
from precad.experiments.local import OWNERS, LocalDeployment
from precad.experiments.local.files import Data

BUILDS = (Build.SOUND, Build.OTHER_SILENT)
"""What can be played with processes."""
_WATCHED = "precad.cli.audit.watched_server"
_OWNER = "precad.experiments.audit.canary_owner"
_TRAINING_S = 3600.0
_END_S = 60.0
_WORK_S, _REJOIN_S = 0.2, 1.0


def train(
    made: Designed,
    *,
    build_of: Build = Build.SOUND,
    folder: Path | None = None,
    popen: Callable[..., Popen[bytes]] | None = None,
) -> Audited:
    """Plays the training with the canaries' owner among the others.

    Server B's own noise and the models are what the real processes had. Nothing has a seed here
    but the canaries and their coins.

    Args:
        made: task, owners and canaries.
        build_of: one of ``BUILDS``.
        folder: receives settings, states and logs; a temporary one unless given.
        popen: starts a part's process.

    Raises:
        Misconfiguration: this build can't be played so.
        PeerUnavailable: a part died or didn't end; with the end of its log.
    """
    if build_of not in BUILDS:
        known = ", ".join(build.value for build in BUILDS)
        raise Misconfiguration("--build", build_of.value, f"with --deployed use one of {known}")
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="precad-audit-") as temporary:
            return train(made, build_of=build_of, folder=Path(temporary), popen=popen)
    task = _as_played(made.task)
    canaries = made.canaries
    data = {ClientId(name): share for name, share in made.shares.items()}
    data[ClientId(AUDITED)] = _arrays(canaries.records)
    coins, models = folder / "coins.npy", folder / "models.npy"
    noise = {role: folder / f"noise-{role.value}" for role in (Role.SERVER_A, Role.SERVER_B)}
    np.save(coins, canaries.coins)
    instead = {
        AUDITED: ("-m", _OWNER, "--coins", str(coins), "--models", str(models)),
        Role.SERVER_B.value: ("-m", _WATCHED, "b", "--noise", str(noise[Role.SERVER_B])),
    }
    if build_of is Build.OTHER_SILENT:
        silent = ("-m", _WATCHED, "a", "--silent", "--noise", str(noise[Role.SERVER_A]))
        instead[Role.SERVER_A.value] = silent
    with LocalDeployment(folder, task, data, instead=instead, popen=popen) as deployment:
        deployment.start_servers()
        deployment.start_clients_together()
        _wait(deployment)
    own = [
        np.load(file_of(noise[Role.SERVER_B], version), allow_pickle=False)
        for version in range(task.training.rounds)
    ]
    return Audited(
        made.task,
        list(np.load(models, allow_pickle=False)),
        {Role.SERVER_B: own},
        denominator(task, {**made.shares, AUDITED: canaries.records}),
    )


def _wait(deployment: LocalDeployment) -> None:
    """Until the audited owner has seen the last model."""
    waited = 0.0
    while deployment.processes[AUDITED].poll() is None:
        deployment.check_alive()
        try:
            deployment.wait((AUDITED,), 1.0)
        except PeerUnavailable:
            waited += 1.0
            if waited > _TRAINING_S:
                raise
    if deployment.processes[AUDITED].returncode != 0:
        raise PeerUnavailable(f"{AUDITED} failed:\n{deployment.log_tail(AUDITED)}")
    deployment.wait((OWNERS,), _END_S)


def _as_played(task: Task) -> Task:
    """With an audit's name and the pace of one machine: no statement depends on either."""
    values = task.model_dump(mode="json") | {"name": NAME}
    values["deadlines"] |= {"work": _WORK_S, "rejoin": _REJOIN_S}
    return Task.parse(values)


def _arrays(records: Records) -> Data:
    return records.inputs.numpy(), records.targets.numpy()
