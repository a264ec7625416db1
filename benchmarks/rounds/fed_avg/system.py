"""Plain averaging as a system: one server, and one process with all clients."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rounds.lines import Lines, Wire
from benchmarks.rounds.meter import read
from benchmarks.rounds.part import Part
from benchmarks.rounds.sample import OVER, Sample, between, require_right
from precad.cli.local_deployment import free_addresses
from precad.common.identity.deployment_keys import create_local_keys

NAME = "fed_avg"
FLOAT_BYTES = 4


class OneServer:
    """One server without a norm check, Flower's or plain averaging's, and its clients.

    Args:
        name: the system's.
        server: the process.
        clients: the process with all of them.
        told: which of the two is told to play, and whether the mean was right.
        moved: bytes that all clients together upload in a round, and fetch.
        wire: to the server.
        over: what the round's end is.
    """

    def __init__(
        self,
        name: str,
        server: Part,
        clients: Part,
        told: Part,
        moved: int,
        wire: Wire,
        over: str = OVER,
    ) -> None:
        self.name, self.clients, self._over = name, clients, over
        self.processes = {"server": server.pid, "clients": clients.pid}
        self._told, self._moved, self._wire = told, moved, wire

    def play(self) -> Sample:
        """One round."""
        with self._wire.round():
            begin = read(self.processes)
            said = self._told.ask(play=True)
            took = between(begin, read(self.processes))
        require_right(self.name, self._told.ask(check=True))
        # Of the clients, where their process is the one that is told.
        moments = {
            name: at_s - begin.at_s for name, at_s in said.get("moments", {}).items()
        }
        return Sample(
            wall_s={"round_s": took.at_s},
            cpu_s={"round": took.cpu_s},
            lines=self._wire.last,
            moments={**moments, self._over: took.at_s},
        )

    def facts(self) -> dict[str, Any]:
        """Bytes of a round by link: they follow from what it is.

        And what the wire had.
        """
        payload = {"clients to server": self._moved, "server to clients": self._moved}
        return {"payload_bytes": payload, **self._wire.facts()}


@contextmanager
def set_up(
    dimension: int, clients: int, bound: int, folder: Path, lines: Lines
) -> Iterator[OneServer]:
    """A server and ``clients`` clients whose vectors are at most ``bound`` long.

    Raises:
        PrecadError: a part didn't start.
    """
    folder.mkdir()
    keys, (address,) = folder / "keys", free_addresses(1)
    names = [f"owner-{number:04d}" for number in range(clients)]
    create_local_keys(keys, names)
    with (
        Part("server", "benchmarks.rounds.fed_avg.server", folder) as server,
        Part("clients", "benchmarks.rounds.fed_avg.clients", folder) as process,
    ):
        server.ask(
            address=address,
            identity=str(keys / "server-a"),
            clients=clients,
            dimension=dimension,
        )
        process.ask(
            address=lines.way("clients", address),
            keys=str(keys),
            names=names,
            dimension=dimension,
            bound=bound,
        )
        moved = FLOAT_BYTES * dimension * clients
        yield OneServer(
            NAME, server, process, process, moved, Wire(lines, {address: "server"})
        )
