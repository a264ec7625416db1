"""All of Flower's clients in one process, each with a connection of its own.

See ``Part``.
"""

from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from flwr.client import NumPyClient, start_client
from numpy.typing import NDArray

from benchmarks.rounds.part import Orders
from benchmarks.rounds.vectors import vectors


class Prepared(NumPyClient):  # type: ignore[misc]  # flwr has no types
    """Answers with what it would have computed, ``[d] float32``."""

    def __init__(self, x: NDArray[np.float32]) -> None:
        self._x = x

    def fit(
        self, parameters: Any, config: Any
    ) -> tuple[list[NDArray[np.float32]], int, Any]:
        """Take the model as an array, answer with the vector, weight 1."""
        del parameters, config
        return [self._x], 1, {}


def main() -> None:
    """Serve each client's part in a thread of its own, until the process is ended."""
    orders = Orders()
    messages = iter(orders)
    setup = next(messages)
    root = Path(setup["root"]).read_bytes()
    for x in vectors(setup["count"], setup["dimension"], setup["bound"]):
        to_server = {
            "server_address": setup["address"],
            "client": Prepared(x.astype(np.float32)).to_client(),
            "root_certificates": root,
        }
        Thread(target=start_client, kwargs=to_server, daemon=True).start()
    orders.say(mark="started")
    for _ in messages:
        """Nothing more is asked of them."""


if __name__ == "__main__":
    main()
