"""Server A or B as a process that tells what it knows: for audits, and for nothing else.

``python -m precad.cli.audit.watched_server b --noise folder --config server-b.toml``. A curious
server knows its own noise; this one keeps it, so that the audit can take it off the noisy sums.
With ``--silent`` it draws none: a broken build, which the audit must find. `precad serve` has
neither, and this refuses every task but an audit's own, on this machine alone.
"""

import argparse
import asyncio
from pathlib import Path

import numpy as np

import precad.server_a.process
import precad.server_b.process
from precad.cli.start import said
from precad.common.aggregator.release.release import add_noise
from precad.common.aggregator.round.states import Noised, Summed
from precad.common.aggregator.training import conduct
from precad.common.errors import PrecadError
from precad.common.log_lines import start_log
from precad.common.noise import NoiseSource
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.experiments.audit.own_task import require_own

_PROCESSES = {"a": precad.server_a.process, "b": precad.server_b.process}


class Silent:
    """No noise: what a broken server draws."""

    def draw(self, dimension: int) -> RingVector:
        """Zeros."""
        return np.zeros(dimension, np.int64)


def file_of(folder: Path, version: int) -> Path:
    """Where a round's noise lies, ``[d] int64``."""
    return folder / f"{version}.npy"


def watch(folder: Path, *, silent: bool) -> None:
    """Keep this process's own noise of every round; a later attempt's takes an earlier one's place.

    Args:
        folder: receives a file a version.
        silent: draw none.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def kept(summed: Summed, noise: NoiseSource) -> Noised:
        noised = add_noise(summed, Silent() if silent else noise)
        own = noised.noisy_share - summed.share_sum
        np.save(file_of(folder, summed.counted.opened.version), own)
        return noised

    vars(conduct)[add_noise.__name__] = kept


def main() -> int:
    """Command line of a watched server. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=sorted(_PROCESSES))
    parser.add_argument("--config", type=Path, required=True, help="as for `precad serve`")
    parser.add_argument("--noise", type=Path, required=True, help="folder for its own noise")
    parser.add_argument("--silent", action="store_true", help="draw none")
    given = parser.parse_args()
    start_log()
    try:
        process = _PROCESSES[given.server]
        settings = process.SETTINGS.load(given.config)
        require_own(Task.load(settings.task), settings.listen)
        watch(given.noise, silent=given.silent)
        return int(asyncio.run(process.serve(settings)))
    except PrecadError as error:
        return said(error)


if __name__ == "__main__":
    raise SystemExit(main())
