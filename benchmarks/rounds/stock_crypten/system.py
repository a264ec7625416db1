"""Stock CrypTen as a system: two parties that check, and do nothing else."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.rounds.meter import read
from benchmarks.rounds.part import Message, Part
from benchmarks.rounds.sample import Sample, between, require_right

PARTIES = 2


class StockCrypten:
    """Two running parties.

    Args:
        parties: the processes.
        joined: what each said when it had its shares.
    """

    name = "stock_crypten"

    def __init__(self, parties: list[Part], joined: list[Message]) -> None:
        self.processes = {
            f"party {rank}": party.pid for rank, party in enumerate(parties)
        }
        self._parties, self._joined = parties, joined

    def play(self) -> Sample:
        """One check of everybody's vector."""
        begin = read(self.processes)
        for party in self._parties:
            party.tell(check=True)
        answers = [party.hear() for party in self._parties]
        took = between(begin, read(self.processes))
        for answer in answers:
            require_right(self.name, answer)
        return Sample({"validate_s": took.at_s}, {"validate": took.cpu_s})

    def facts(self) -> dict[str, Any]:
        """Exchanges and bytes as CrypTen counts: each party what it sends and what it gets."""
        each_way = round(sum(joined["bytes"] for joined in self._joined) / PARTIES**2)
        return {
            "exchanges": int(self._joined[0]["exchanges"]),
            "payload_bytes": {
                "party 0 to party 1": each_way,
                "party 1 to party 0": each_way,
            },
        }


@contextmanager
def set_up(
    dimension: int, clients: int, bound: int, fractional_bits: int, folder: Path
) -> Iterator[StockCrypten]:
    """Two parties that hold shares of ``clients`` vectors.

    Raises:
        PrecadError: a party didn't start, or lets a vector of norm 2C pass.
    """
    folder.mkdir()
    with ExitStack() as stack:
        parties = []
        for rank in range(PARTIES):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(PARTIES),
                "RENDEZVOUS": f"file://{folder / 'rendezvous'}",
                "DISTRIBUTED_BACKEND": "gloo",
                "GLOO_SOCKET_IFNAME": "lo",
            }
            name, module = f"party-{rank}", "benchmarks.rounds.stock_crypten.party"
            parties.append(stack.enter_context(Part(name, module, folder, environment)))
        for party in parties:
            party.tell(
                count=clients,
                dimension=dimension,
                bound=bound,
                fractional_bits=fractional_bits,
            )
        joined = [party.hear() for party in parties]
        for answer in joined:
            require_right(StockCrypten.name, answer)
        yield StockCrypten(parties, joined)
