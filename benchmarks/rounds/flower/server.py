"""Flower's own server with its own FedAvg: `start_server`, over its bidirectional gRPC stream, TLS.

Deprecated since Flower 1.13, and the leanest way that Flower has: a message goes to a
client when there is one, where a SuperLink keeps it until a SuperNode asks for it, and
asks every few seconds. Flower prints a warning about it, to the log. Run as a program:
see ``Part``.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

from benchmarks.rounds.part import Message, Orders
from benchmarks.rounds.vectors import vectors

ROUNDS = 1_000_000
"""It plays until it is stopped."""


class Told(FedAvg):  # type: ignore[misc]  # flwr has no types
    """Flower's strategy, unchanged but for waiting: a round begins when it is told to.

    Args:
        orders: says what was done.
        messages: what this process is told.
        setup: the first of them.
    """

    def __init__(
        self, orders: Orders, messages: Iterator[Message], setup: Message
    ) -> None:
        self._orders, self._messages = orders, messages
        self._count = setup["count"]
        given = vectors(self._count, setup["dimension"], setup["bound"])
        self._mean = np.sum(given, axis=0) / self._count
        self._model = np.zeros(setup["dimension"], dtype=np.float32)
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=self._count,
            min_available_clients=self._count,
            initial_parameters=ndarrays_to_parameters([self._model]),
        )

    def initialize_parameters(self, client_manager: Any) -> Any:
        """As FedAvg; the port is open by now."""
        self._orders.say(mark="serving")
        return super().initialize_parameters(client_manager)

    def configure_fit(
        self, server_round: int, parameters: Any, client_manager: Any
    ) -> Any:
        """As FedAvg, once everybody is there and this process is told to play."""
        client_manager.wait_for(self._count)
        if server_round == 1:
            self._orders.say(mark="joined")
        for message in self._messages:
            if "play" in message:
                break
            self._orders.say(mark="checked", right=self._right())
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """As FedAvg; the round is over."""
        found = super().aggregate_fit(server_round, results, failures)
        self._orders.say(mark="over")
        if failures or found[0] is None:
            raise RuntimeError(f"clients failed: {failures}")
        self._model = parameters_to_ndarrays(found[0])[0]
        return found

    def _right(self) -> bool:
        """Whether the last model is the mean of all vectors, but for what float32 rounds off."""
        rounding = 1e-5 * np.abs(self._mean).max()
        return bool(np.abs(self._model - self._mean).max() <= rounding)


def main() -> None:
    """Serve until the process is ended."""
    orders = Orders()
    messages = iter(orders)
    setup = next(messages)
    start_server(
        server_address=setup["address"],
        config=ServerConfig(num_rounds=ROUNDS),
        strategy=Told(orders, messages, setup),
        certificates=tuple(Path(each).read_bytes() for each in setup["certificates"]),
    )


if __name__ == "__main__":
    main()
