"""Server A or B as a process that tells what it knows: for audits, and for nothing else.

``python -m research.audits.watched_server b --noise folder --config server-b.toml``. A
curious server knows its own noise; this one keeps it, so that the audit can take it off
the noisy sums. With ``--looks`` it breaks the link behind the other's noisy share,
again and again, to have the release tried again. With ``--build`` it is a broken one,
which the audit must find. `precad serve` has none of these, and this refuses every task
but an audit's own, on this machine alone.
"""

import argparse
import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import precad.server_a.process
import precad.server_b.process
from precad.aggregator import release as releasing
from precad.aggregator.attempt_states import Finished, Noised, Prepared, Sent, Summed
from precad.aggregator.noise import DiscreteGaussian, NoiseSource
from precad.aggregator.release import add_noise, countersign
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.training import recovery, training_loop
from precad.aggregator.validate import crypten_comparisons
from precad.cli.start import said
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.process import start_log
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.norm_check.prime_field import Group
from research.audits.builds import Build, replace
from research.audits.canary_owners import require_own

_PROCESSES = {"a": precad.server_a.process, "b": precad.server_b.process}


class NoObserver:
    """No noise: what a broken server draws."""

    def draw(self, dimension: int) -> RingVector:
        """Zeros."""
        return np.zeros(dimension, np.int64)


def file_of(folder: Path, version: int) -> Path:
    """Where what a server knows of a round's noise lies, ``[d] int64``."""
    return folder / f"{version}.npy"


def keep_noise(folder: Path, instead: NoiseSource | None) -> None:
    """Keep this process's own noise of every round; a later attempt's takes an earlier one's place.

    Args:
        folder: receives a file a version.
        instead: what a broken server draws from.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def kept(summed: Summed, noise: NoiseSource, group: Group) -> Noised:
        noised = add_noise(summed, noise if instead is None else instead, group)
        own = noised.noisy_share.copy()
        group.subtract(own, summed.share_sum)
        own = group.decode(own)
        np.save(file_of(folder, summed.counted.opened.version), own)
        return noised

    replace(training_loop, add_noise, kept)


def look_again(folder: Path, looks: int) -> None:
    """Have every round released so often; how far the last noisy share is from the mean is known.

    Args:
        folder: of ``keep_noise``.
        looks: how many noisy shares of the other server to see.
    """
    seen: dict[int, list[RingVector]] = defaultdict(list)
    step = releasing.step

    def looked(
        aggregator: Aggregator,
        sent: Sent,
        theta: NDArray[np.float64],
        theirs: bytes,
    ) -> Finished:
        version = sent.counted.opened.version
        # The sum that it gives with this server's own share, which stays the same.
        total = aggregator.shares.joined(sent.noisy_share, theirs)
        seen[version].append(total)
        if len(seen[version]) < looks:
            raise PeerUnavailable("this server looks again")
        others = np.mean([total - each for each in seen.pop(version)], axis=0)
        more = np.rint(others).astype(np.int64)
        own = np.load(file_of(folder, version), allow_pickle=False)
        np.save(file_of(folder, version), own + more)
        return step(aggregator, sent, theta, theirs)

    replace(releasing, step, looked)


def redraw(noise: NoiseSource) -> None:
    """Draw noise anew whenever a round's release is tried again."""
    sums: dict[int, RingVector] = {}
    kept = vars(training_loop)[add_noise.__name__]

    def summing(summed: Summed, drawn: NoiseSource, group: Group) -> Noised:
        sums[summed.counted.opened.version] = summed.share_sum
        found: Noised = kept(summed, drawn, group)
        return found

    def anew(aggregator: Aggregator, prepared: Prepared) -> Sent:
        total = sums[prepared.counted.opened.version]
        fresh = total + noise.draw(total.size)
        cut = aggregator.shares.cut(fresh)
        return countersign(aggregator, dataclasses.replace(prepared, noisy_share=cut))

    replace(training_loop, add_noise, summing)
    replace(recovery, countersign, anew)


def check_nothing() -> None:
    """Whatever its norm, an update counts."""

    def every(words: Sequence[RingVector], **_: object) -> NDArray[np.bool_]:
        return np.ones(len(words), np.bool_)

    replace(crypten_comparisons, crypten_comparisons.decide, every)


def become(server: str, build: Build, task: Task, folder: Path, looks: int) -> None:
    """From now on this process is that server of that build.

    Args:
        server: a or b.
        build: what runs.
        task: gives the noise's scale.
        folder: receives what it knows of the noise.
        looks: how often it has a round released; 1 for a server that isn't curious so.
    """
    instead: NoiseSource | None = None
    if build is Build.HALF_NOISE:
        instead = DiscreteGaussian(task.mechanism.noise_units / 2)
    if build is Build.OTHER_SILENT and server == "a":
        instead = NoObserver()
    keep_noise(folder, instead)
    if build is Build.REDRAWN and server == "a":
        redraw(DiscreteGaussian(task.mechanism.noise_units))
    if build is Build.UNCHECKED:
        check_nothing()
    if looks > 1:
        look_again(folder, looks)


def main() -> int:
    """Command line of a watched server. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", choices=sorted(_PROCESSES))
    parser.add_argument(
        "--config", type=Path, required=True, help="as for `precad serve`"
    )
    parser.add_argument(
        "--noise", type=Path, required=True, help="folder for its own noise"
    )
    parser.add_argument("--build", type=Build, default=Build.SOUND, help="what runs")
    parser.add_argument(
        "--looks", type=int, default=1, help="noisy shares to see of a round"
    )
    given = parser.parse_args()
    start_log()
    try:
        process = _PROCESSES[given.server]
        settings = process.SETTINGS.load(given.config)
        task = Task.load(settings.task)
        require_own(task, settings.listen)
        become(given.server, given.build, task, given.noise, given.looks)
        return int(asyncio.run(process.serve(settings)))
    except PrecadError as error:
        return said(error)


if __name__ == "__main__":
    raise SystemExit(main())
