"""Flower's own SecAgg+ in one process: its server's workflow and its clients' modifier.

Messages are serialised both ways as Flower does for its network, and handed over in
memory: no network, no TLS, no processes to start, one after another. So it is the least
that a round of it takes. Run as a program: see ``Part``.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    Code,
    FitRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.proto.message_pb2 import Message as WireMessage
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from benchmarks.rounds.part import Orders
from benchmarks.rounds.vectors import vectors

SHARES = 3
THRESHOLD = 2
"""As in Flower's example of secure aggregation: each client masks with two others."""
CLIPPING = 8.0
QUANTISED = 1 << 22
_SERVER = 0


@dataclass(frozen=True, slots=True)
class _Proxy:
    """What the client manager and the strategy ask of a client."""

    cid: str
    node_id: int


class InMemory:
    """Where the workflow sends its messages; counts them.

    Args:
        given: each client's vector, ``[d] float64``, by node; nodes count from 1.
    """

    def __init__(self, given: dict[int, NDArray[np.float64]]) -> None:
        self._given = given
        self._contexts = {node: _context(node) for node in given}
        self.to_clients = self.to_server = 0

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """Let each client answer its message."""
        del timeout
        answers = []
        for message in messages:
            there = message_to_proto(message).SerializeToString()
            received = message_from_proto(WireMessage.FromString(there))
            context = self._contexts[received.metadata.dst_node_id]
            answer = secaggplus_mod(received, context, self._train)
            back = message_to_proto(answer).SerializeToString()
            answers.append(message_from_proto(WireMessage.FromString(back)))
            self.to_clients += len(there)
            self.to_server += len(back)
        return answers

    def _train(self, message: Any, context: Any) -> Any:
        """What a client would have computed: its prepared vector, with weight 1."""
        parameters = ndarrays_to_parameters([self._given[context.node_id]])
        result = FitRes(Status(Code.OK, ""), parameters, 1, {})
        return Message(
            compat.fitres_to_recorddict(result, keep_input=False), reply_to=message
        )


class Training:
    """A server and its clients, for one round after another."""

    def __init__(
        self, count: int, dimension: int, bound: int, fractional_bits: int
    ) -> None:
        given = vectors(count, dimension, bound)
        reals = [np.ldexp(x, -fractional_bits) for x in given]
        self._mean = np.mean(reals, axis=0)
        self._start = np.zeros(dimension)
        self.grid = InMemory(dict(enumerate(reals, start=1)))
        self._manager = SimpleClientManager()
        for node in range(1, count + 1):
            self._manager.register(_Proxy(str(node), node))
        self._strategy = FedAvg(
            fraction_fit=1.0, min_fit_clients=count, min_available_clients=count
        )
        self._model: NDArray[np.float64] = self._start

    def play(self) -> None:
        """One round of all clients."""
        context = LegacyContext(
            _context(_SERVER), ServerConfig(num_rounds=1), self._strategy, self._manager
        )
        context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(
            {Key.CURRENT_ROUND: 1}
        )
        start = compat.parameters_to_arrayrecord(
            ndarrays_to_parameters([self._start]), True
        )
        context.state.array_records[MAIN_PARAMS_RECORD] = start
        SecAggPlusWorkflow(
            SHARES,
            THRESHOLD,
            max_weight=1.0,
            clipping_range=CLIPPING,
            quantization_range=QUANTISED,
        )(self.grid, context)
        end = context.state.array_records[MAIN_PARAMS_RECORD]
        (self._model,) = parameters_to_ndarrays(
            compat.arrayrecord_to_parameters(end, True)
        )

    def right(self) -> bool:
        """Whether the last round gave the mean, but for what quantising rounds off."""
        rounding = 2 * (2 * CLIPPING / QUANTISED)
        return bool(np.abs(self._model - self._mean).max() <= rounding)


def _context(node: int) -> Any:
    return Context(1, node, {}, RecordDict(), {})


def main() -> None:
    """Play, or check, as asked."""
    orders = Orders()
    messages = iter(orders)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    # Flower takes it from the process that a run's task is started in.
    TaskIdentity.run_id = TaskIdentity.task_id = 1
    TaskIdentity.node_id = _SERVER
    setup = next(messages)
    training = Training(
        setup["count"], setup["dimension"], setup["bound"], setup["fractional_bits"]
    )
    orders.say(mark="joined")
    for message in messages:
        if "play" in message:
            training.play()
            orders.say(mark="over")
        else:
            grid = training.grid
            orders.say(
                mark="checked",
                right=training.right(),
                to_clients=grid.to_clients,
                to_server=grid.to_server,
            )


if __name__ == "__main__":
    main()
