"""Flower's SecAgg+ as a system: one process, messages in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rounds.flower.installed import environment
from benchmarks.rounds.meter import read
from benchmarks.rounds.part import Part
from benchmarks.rounds.sample import Sample, between, require_right

LEAST_CLIENTS = 3
"""Its example's shares go to two others."""


STAGES = 4
"""Set-up, keys, masked vectors, unmasking: one after the other."""


class SecAggPlus:
    """A running server with its clients.

    Args:
        training: the process.
    """

    name = "sec_agg_plus"

    def __init__(self, training: Part) -> None:
        self.processes = {"all": training.pid}
        self._training = training
        self._rounds = 0
        self._sent = {"server to clients": 0, "clients to server": 0}

    def play(self) -> Sample:
        """One round."""
        self._rounds += 1
        begin = read(self.processes)
        self._training.ask(play=True)
        took = between(begin, read(self.processes))
        answer = self._training.ask(check=True)
        require_right(self.name, answer)
        self._sent = {
            "server to clients": answer["to_clients"],
            "clients to server": answer["to_server"],
        }
        return Sample({"round_s": took.at_s}, {"round": took.cpu_s})

    def facts(self) -> dict[str, Any]:
        """Bytes of a round by link, as Flower serialises them."""
        payload = {link: count // self._rounds for link, count in self._sent.items()}
        return {"payload_bytes": payload}


@contextmanager
def set_up(
    dimension: int, clients: int, bound: int, fractional_bits: int, folder: Path
) -> Iterator[SecAggPlus]:
    """A server with ``clients`` clients, at least ``LEAST_CLIENTS``.

    Raises:
        PrecadError: it didn't start.
    """
    folder.mkdir()
    with Part(
        "training", "benchmarks.rounds.sec_agg_plus.party", folder, environment()
    ) as training:
        training.ask(
            count=clients,
            dimension=dimension,
            bound=bound,
            fractional_bits=fractional_bits,
        )
        yield SecAggPlus(training)
