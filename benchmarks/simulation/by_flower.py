"""The same training by Flower's simulation, for `../simulate.py`: CASE, CLIENTS, ROUNDS.

Runs in an environment that has flwr[simulation], without precad.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from numpy.typing import NDArray
from same_task import LEARNING_RATE, RATE, RECORDS, cnn, owners_of, records

Arrays = list[NDArray[np.float32]]
CASE, CLIENTS, ROUNDS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TAKEN = int(RATE * RECORDS)
final: Arrays = []


def first() -> Arrays:
    """Where training starts."""
    if CASE == "cnn":
        return [value.detach().numpy() for value in cnn().parameters()]
    return [np.zeros((10, 64), np.float32), np.zeros(10, np.float32)]


def logits(weights: Arrays, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """``[n, 10]``."""
    if CASE == "cnn":
        import torch  # noqa: PLC0415

        with torch.no_grad():
            values: NDArray[np.float32] = loaded(weights)(torch.from_numpy(x)).numpy()
            return values
    scores: NDArray[np.float32] = x @ weights[0].T + weights[1]
    return scores


def loaded(weights: Arrays) -> Any:
    """The CNN with these weights."""
    import torch  # noqa: PLC0415

    net = cnn()
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), weights, strict=True):
            parameter.copy_(torch.from_numpy(value))
    return net


def step(weights: Arrays, x: NDArray[np.float32], y: NDArray[np.int64]) -> Arrays:
    """One step of gradient descent."""
    if CASE == "cnn":
        import torch  # noqa: PLC0415

        torch.set_num_threads(1)
        net = loaded(weights)
        torch.nn.functional.cross_entropy(
            net(torch.from_numpy(x)), torch.from_numpy(y)
        ).backward()
        return [
            (value - LEARNING_RATE * parameter.grad.numpy()).astype(np.float32)
            for value, parameter in zip(weights, net.parameters(), strict=True)
        ]
    raised = np.exp(logits(weights, x))
    slopes = raised / raised.sum(axis=1, keepdims=True)
    slopes[np.arange(len(y)), y] -= 1
    slopes *= LEARNING_RATE / len(y)
    return [weights[0] - slopes.T @ x, weights[1] - slopes.sum(axis=0)]


client = ClientApp()
HELD: dict[str, Any] = {}


@client.train()  # type: ignore[untyped-decorator, unused-ignore]
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    if not HELD:
        HELD.update(data=records(CASE), owners=owners_of(CASE, CLIENTS))
    mine = HELD["owners"][int(context.node_config["partition-id"])]
    some = np.random.default_rng().choice(mine, TAKEN, replace=False)
    x, y = HELD["data"]
    weights = step(message.content["arrays"].to_numpy_ndarrays(), x[some], y[some])
    content = {
        "arrays": ArrayRecord(weights),
        "metrics": MetricRecord({"num-examples": TAKEN}),
    }
    return Message(content=RecordDict(content), reply_to=message)


server = ServerApp()


@server.main()  # type: ignore[untyped-decorator, unused-ignore]
def lead(grid: Grid, _context: Context) -> None:
    """Everybody in each round; nothing is evaluated on the way."""
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=CLIENTS,
        min_available_nodes=CLIENTS,
    )
    found = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(first()), num_rounds=ROUNDS
    )
    final.extend(found.arrays.to_numpy_ndarrays())


def main() -> None:
    """Play it."""
    started = time.perf_counter()
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    resources["init_args"] = {"num_cpus": len(os.sched_getaffinity(0))}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=resources)
    seconds = time.perf_counter() - started
    x, y = records(CASE)
    said = {
        "training_s": seconds,
        "version": version("flwr"),
        "accuracy": float((logits(final, x).argmax(axis=1) == y).mean()),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
