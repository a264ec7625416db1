"""One training by a trusted curator, for `../utility.py`: DP-SGD by Opacus, or without privacy.

    python by_opacus.py FOLDER SEED '{"rounds": 50, …}'

FOLDER has ``train_x.npy``, ``train_y.npy``, ``test_x.npy`` and ``test_y.npy``. Needs
torch and Opacus, and no precad. Says a JSON object.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

Told = dict[str, Any]
_AT_ONCE = 500
"""Records whose gradients are held together."""


def main() -> None:
    """Train it."""
    folder, seed, how = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y, test_x, test_y = (
        torch.from_numpy(np.load(folder / f"{name}.npy"))
        for name in ("train_x", "train_y", "test_x", "test_y")
    )
    began = time.process_time()
    net = nn.Linear(x.shape[1], 10)
    for weights in net.parameters():
        nn.init.zeros_(weights)
    steps = torch.optim.SGD(net.parameters(), how["learning_rate"], how["momentum"])
    trained = (
        private(net, steps, x, y, how)
        if how["epsilon"]
        else plain(net, steps, x, y, how)
    )
    with torch.no_grad():
        right = (net(test_x).argmax(1) == test_y).float().mean()
    said = {
        "accuracy": round(float(right), 6),
        "cpu_seconds": round(time.process_time() - began),
    }
    said |= {"opacus": version("opacus"), "torch": torch.__version__}
    print(json.dumps(trained | said))


def private(
    net: nn.Module, steps: torch.optim.Optimizer, x: Tensor, y: Tensor, how: Told
) -> Told:
    """With Poisson samples and the noise that its own accountant finds for ε."""
    rate, rounds, delta = how["record_rate"], how["rounds"], how["delta"]
    noise = get_noise_multiplier(
        target_epsilon=how["epsilon"],
        target_delta=delta,
        sample_rate=rate,
        steps=rounds,
        epsilon_tolerance=0.005,
        accountant="prv",
    )
    engine = PrivacyEngine(accountant="prv")
    records = DataLoader(TensorDataset(x, y), batch_size=round(rate * len(x)))
    module, optimizer, loader = engine.make_private(
        module=net,
        optimizer=steps,
        data_loader=records,
        noise_multiplier=noise,
        max_grad_norm=how["record_clip"],
    )

    def taken() -> int:
        return sum(steps for *_, steps in engine.accountant.history)

    # One pass of Opacus' loader is 1/p samples, each handed out in parts that fit into
    # memory.
    while taken() < rounds:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=_AT_ONCE, optimizer=optimizer
        ) as parts:
            for inputs, labels in parts:
                optimizer.zero_grad()
                nn.functional.cross_entropy(module(inputs), labels).backward()
                optimizer.step()
                if taken() == rounds:
                    break
    return {
        "noise_multiplier": noise,
        "epsilon": engine.get_epsilon(delta),
        "steps": taken(),
    }


def plain(
    net: nn.Module, steps: torch.optim.Optimizer, x: Tensor, y: Tensor, how: Told
) -> Told:
    """Batches in random order, neither clipped nor noised."""
    batch = round(how["record_rate"] * len(x))
    for _ in range(how["epochs"]):
        for some in torch.randperm(len(x)).split(batch):
            steps.zero_grad()
            nn.functional.cross_entropy(net(x[some]), y[some]).backward()
            steps.step()
    return {"epsilon": None, "steps": how["epochs"] * -(-len(x) // batch)}


if __name__ == "__main__":
    main()
