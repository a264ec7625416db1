"""An audited training by real processes: dealer, both servers and every owner, over localhost."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import numpy as np
from examples.demo.local_processes import Data, LocalDeployment, forked_part
from numpy.typing import NDArray

from precad.client.records.torch_records import Records
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.ring import RingVector
from precad.common.task import Task
from research.audits.builds import RELEASES, Build
from research.audits.canary_owners import NAME
from research.audits.canary_training import AUDITED, Audited, Designed, denominator
from research.audits.presence import Present
from research.audits.watched_server import file_of

Popens = Callable[..., Popen[bytes]]
_WATCHED = "research.audits.watched_server"
_OWNERS = "research.audits.canary_owners"
_TRAINING_S = 3600.0
_END_S = 60.0
_WORK_S = 0.0
"""Uploads begin at once: when they do tells nobody anything here."""
_REJOIN_S = 1.0


def train(
    made: Designed,
    *,
    build_of: Build = Build.SOUND,
    looks: int | None = None,
    folder: Path | None = None,
    popen: Popens = forked_part,
) -> Audited:
    """Plays the training with the canaries' owner among the others.

    Server B's own noise and the models are what the real processes had. Nothing has a seed here
    but the canaries and their coins.

    Args:
        made: task, owners and canaries.
        build_of: what runs, one of ``builds.OF_RECORDS``.
        looks: how often server B has each round released, by breaking the link;
            ``RELEASES`` unless given where A draws its noise anew, else 1.
        folder: receives settings, states and logs; a temporary one unless given.
        popen: starts a part's process.

    Raises:
        PeerUnavailable: a part died or didn't end; with the end of its log.
    """
    if looks is None:
        looks = RELEASES if build_of is Build.REDRAWN else 1
    with _folder(folder) as place:
        task, canaries = _as_played(made.task), made.canaries
        data = {ClientId(name): share for name, share in made.shares.items()}
        data[ClientId(AUDITED)] = _arrays(canaries.records)
        coins, models = place / "coins.npy", place / "models.npy"
        np.save(coins, canaries.coins)
        kept = ("--coins", str(coins), "--models", str(models))
        servers = _servers(place, build_of)
        servers[Role.SERVER_B.value] = _watched(
            place, "b", build_of, "--looks", str(looks)
        )
        instead = {
            AUDITED: ("-m", _OWNERS, "--build", build_of.value, *kept),
            **servers,
        }
        with LocalDeployment(
            place, task, data, instead=instead, popen=popen
        ) as deployment:
            deployment.start_servers()
            deployment.start_clients()
            _wait(deployment, AUDITED)
            deployment.wait(made.shares, _END_S)
        known: list[RingVector] = [
            np.load(file_of(place / "noise-b", version), allow_pickle=False)
            for version in range(task.training.rounds)
        ]
        everything = {**made.shares, AUDITED: canaries.records}
        return Audited(list(_models(models)), known, denominator(task, everything))


def train_present(
    made: Present,
    *,
    build_of: Build = Build.SOUND,
    folder: Path | None = None,
    popen: Popens = forked_part,
) -> list[NDArray[np.float64]]:
    """Plays the training whose owners are all canaries, each a process.

    Args:
        made: task, rows and coins.
        build_of: what runs, one of ``builds.OF_PRESENCE``.
        folder: receives settings, states and logs; a temporary one unless given.
        popen: starts a part's process.

    Returns:
        θ_0 to θ_T, ``[d] float64`` each.

    Raises:
        PeerUnavailable: a part died or didn't end; with the end of its log.
    """
    with _folder(folder) as place:
        data = {ClientId(name): share for name, share in made.shares.items()}
        rows, coins, models = (
            place / f"{name}.npy" for name in ("rows", "coins", "models")
        )
        np.save(rows, made.submitted(build_of))
        np.save(coins, made.coins)
        files = ("--rows", str(rows), "--coins", str(coins), "--models", str(models))
        owners = {
            name: ("-m", _OWNERS, *files, "--place", str(number))
            for number, name in enumerate(made.shares)
        }
        instead = {**owners, **_servers(place, build_of)}
        task = _as_played(made.task)
        with LocalDeployment(
            place, task, data, instead=instead, popen=popen
        ) as deployment:
            deployment.start_servers()
            deployment.start_clients()
            for name in made.shares:
                _wait(deployment, name)
        return _models(models)


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="precad-audit-") as temporary:
        yield Path(temporary)


def _servers(folder: Path, build_of: Build) -> dict[str, tuple[str, ...]]:
    """What plays both servers; none for the sound ones, which `precad serve` is."""
    if build_of is Build.SOUND:
        return {}
    return {
        role.value: _watched(folder, letter, build_of)
        for role, letter in ((Role.SERVER_A, "a"), (Role.SERVER_B, "b"))
    }


def _watched(folder: Path, letter: str, build_of: Build, *more: str) -> tuple[str, ...]:
    noise = ("--noise", str(folder / f"noise-{letter}"))
    return ("-m", _WATCHED, letter, "--build", build_of.value, *noise, *more)


def _models(file: Path) -> list[NDArray[np.float64]]:
    return list(np.load(file, allow_pickle=False))


def _wait(deployment: LocalDeployment, name: str) -> None:
    """Until the owners that know the models have seen the last one."""
    waited = 0.0
    while deployment.processes[name].poll() is None:
        deployment.check_alive()
        try:
            deployment.wait((name,), 1.0)
        except PeerUnavailable:
            waited += 1.0
            if waited > _TRAINING_S:
                raise
    if deployment.processes[name].returncode != 0:
        raise PeerUnavailable(f"{name} failed:\n{deployment.log_tail(name)}")


def _as_played(task: Task) -> Task:
    """With an audit's name and the pace of one machine: no statement depends on either."""
    values = task.model_dump(mode="json") | {"name": NAME}
    values["deadlines"] |= {"work": _WORK_S, "rejoin": _REJOIN_S}
    return Task.parse(values)


def _arrays(records: Records) -> Data:
    return records.inputs.numpy(), records.targets.numpy()
