"""When uploads begin: pairs of data sets that differ in one record, at thirty hostile models.

Writes results/upload_times.json beside itself. A `DataOwner` on the way of `precad
join`, over TLS, trains against two servers that serve a hostile model a round: those of
tests and rehearsal, denormals and infinities, the one that was found, and models that a
search chose which maximises the difference in CPU time between the two data sets. Some
are held back before their last byte, some trickle. An upload's begin is measured from
the last byte.

python -m benchmarks.upload_times             4 pairs, minutes
python -m benchmarks.upload_times --pairs 100 the full size; goes on where it ended
python -m benchmarks.upload_times --again 7 9 whether a late round comes of the pair

On a machine with other work, begin with `chrt -f 10`: then nothing else delays a timer.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]  # as `make bench` runs each script

import precad  # noqa: E402, F401, I001 -- before gRPC, which reads its ciphers once
import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from tests.rig import hostile_pairs  # noqa: E402
from tests.rig.fake_server import started  # noqa: E402
from tests.rig.keys import identity  # noqa: E402
from tests.rig.tasks import task_with  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from benchmarks.hostile_models import HostileServer, sendable  # noqa: E402
from benchmarks.rounds.hardware import hardware  # noqa: E402
from precad.client.data_owner import DataOwner  # noqa: E402
from precad.client.gradients.hostile_models import hostile_models, slow_models  # noqa: E402
from precad.client.gradients.local_update import local_update, most_records  # noqa: E402
from precad.client.gradients.torch_models import model_section  # noqa: E402
from precad.client.records.torch_records import Records, as_records  # noqa: E402
from precad.common.errors import Misconfiguration  # noqa: E402
from precad.common.identifiers import ClientId, Role  # noqa: E402
from precad.common.identity.party_certificate import Principal  # noqa: E402
from precad.common.model import to_bytes  # noqa: E402
from precad.common.task import Task  # noqa: E402

RESULT = Path(__file__).parent / "results" / "upload_times.json"
WARD = ClientId("ward-1")
WORK_S = 0.5
TOLERANCE_S = 0.05
MODELS, SEARCHED, TRIED = 30, 4, 24
HELD_S = 0.3
SCHEDULING = {os.SCHED_OTHER: "among others", os.SCHED_FIFO: "real time, before others"}
NETS: dict[str, Any] = {
    "table of temperatures, clamped": (hostile_pairs.clamped, functional.cross_entropy),
    "logistic": (hostile_pairs.plain, functional.cross_entropy),
    "poisson": (lambda: hostile_pairs.plain(1), functional.poisson_nll_loss),
    "two layers": (
        lambda: hostile_pairs.around(nn.LayerNorm(9), nn.GELU()),
        functional.cross_entropy,
    ),
    "sorted": (
        lambda: hostile_pairs.around(
            hostile_pairs.Layer(lambda x: torch.sort(x).values)
        ),
        functional.cross_entropy,
    ),
}
SPECIAL = (10.0, 100.0, 3e38, 1e-42, -1e4, 0.0)


@dataclass(slots=True)
class HoldingServer(HostileServer):
    """Holds back or trickles every other model, and notes when its last byte left."""

    last_byte: dict[int, float] = field(default_factory=dict)

    def FetchModel(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """The version's, at once, held back or in pieces."""
        self.model(request.version)
        data, kind = to_bytes(self.theta), request.version % 4

        def pieces() -> Iterator[bytes]:
            if kind == 1:
                yield data[:-1]
                time.sleep(HELD_S)
            elif kind == 3:
                for part in np.array_split(np.frombuffer(data[:-1], np.uint8), 10):
                    yield part.tobytes()
                    time.sleep(HELD_S / 10)
            self.last_byte[request.version] = self.clock.now()
            yield data[-1:] if kind % 2 else data

        self.pieces = pieces
        return super(HostileServer, self).FetchModel(request, context)


def pair(number: int, net: str, refused: int = 0) -> tuple[Records, Records]:
    """Two data sets that differ in one record, after so many that were refused."""
    generator = np.random.default_rng(number)
    x = generator.uniform(0.1, 1.0, size=(400, 9)).astype(np.float32)
    x[:, 0] = 0.0
    y: NDArray[Any] = generator.integers(0, 2, 400)
    if net == "poisson":
        y = y.astype(np.float32)[:, None]
    other = x.copy()
    other[-1, : 1 + number % 9] = SPECIAL[(number + refused) % len(SPECIAL)]
    return as_records((x, y)), as_records((other, y))


def work_s(task: Task, net: Any, records: Records, theta: NDArray[Any]) -> float:
    """CPU seconds of an update that has the last record."""
    model, loss = net
    some, most = np.arange(300, 400), most_records(400, 0.5)
    began = time.process_time()
    local_update(model, loss, records, some, theta, task, most=most)
    return time.process_time() - began


def searched(
    task: Task, net: Any, both: tuple[Records, Records], number: int
) -> list[NDArray[np.float64]]:
    """Models at which the two data sets' CPU times were furthest apart."""
    generator = np.random.default_rng(1000 + number)
    found: list[tuple[float, NDArray[np.float64]]] = []
    for turn in range(TRIED):
        if turn < TRIED // 2:
            scale = 10.0 ** generator.uniform(-42, 38)
            theta = scale * generator.normal(size=task.dimension)
        else:
            # Beside the best so far.
            best = max(found, key=lambda each: each[0])[1]
            theta = best * generator.choice([0.0, 0.1, 1.0, 10.0, -1.0], task.dimension)
        theta = np.clip(theta, -1e300, 1e300)
        one, other = (work_s(task, net, each, theta) for each in both)
        found.append((abs(one - other), theta))
    found.sort(key=lambda each: -each[0])
    return [theta for _, theta in found[:SEARCHED]]


def models(
    task: Task, net: Any, both: tuple[Records, Records], number: int
) -> list[NDArray[np.float64]]:
    """Thirty of them."""
    served = np.zeros(task.dimension)
    served[0], served[-2:] = 10.0, (-50.0, 0.0)
    every = [theta for _, theta in hostile_models(task.dimension)]
    every += [*slow_models(task.model.parameters), served]
    every += [hostile_pairs.with_property(task.dimension)]
    every += searched(task, net, both, number)
    generator = np.random.default_rng(number)
    while len(every) < MODELS:
        every.append(
            10.0 ** generator.uniform(-3, 5) * generator.normal(size=task.dimension)
        )
    return [sendable(theta) for theta in every[:MODELS]]


def begun(
    task: Task, net: Any, records: Records, thetas: list[NDArray[np.float64]]
) -> list[float]:
    """Seconds by which each round's later upload began after the constant."""
    shared: dict[str, Any] = {"versions": {}, "opened": {}, "last_byte": {}}
    servers = [
        HoldingServer(
            role,
            task,
            thetas[0],
            rounds=len(thetas),
            paced=True,
            served=thetas,
            **shared,
        )
        for role in (Role.SERVER_A, Role.SERVER_B)
    ]
    servers[0].says_over = True
    with started(*servers):
        owner = DataOwner(
            WARD.name,
            task=task,
            data=(records.inputs, records.targets),
            model=net[0],
            loss=net[1],
            server_a=servers[0].address,
            server_b=servers[1].address,
            record_rate=0.5,
            identity=identity(Principal.client(WARD.name)),
        )
        result = owner.run(progress=False)
    late = []
    for version in range(min(map(len, (server.came_after for server in servers)))):
        came = max(server.came_after[version] for server in servers)
        at = servers[0].opened[version] + came
        since = max(servers[0].opened[version], servers[0].last_byte.get(version, 0.0))
        late.append(round(at - since - WORK_S, 4))
    return [*late, *[float("inf")] * (len(thetas) - len(late))] if result else late


def tried(number: int) -> dict[str, Any]:
    """One pair of data sets."""
    name = list(NETS)[number % len(NETS)]
    make, loss = NETS[name]
    net = make(), loss
    task = task_with(
        {
            "model": model_section(net[0], architecture="custom", initial="uniform"),
            "privacy.record_rate": 0.5,
            "deadlines.work": WORK_S,
            "training.rounds": 100,
            "enrolment.max_expected_records": 400.0,
        }
    )
    for refused in range(len(SPECIAL)):
        both = pair(number, name, refused)
        thetas = models(task, net, both, number)
        try:
            without, with_it = (begun(task, net, each, thetas) for each in both)
        except Misconfiguration as error:
            # A record without a finite loss at the first model is refused before
            # anything is sent: 3e38 through a layer norm.
            print(f"pair {number}: {error}", flush=True)
        else:
            break
    apart = [abs(one - other) for one, other in zip(without, with_it, strict=True)]
    every = without + with_it
    return {
        "pair": number,
        "net": name,
        "refused_before": refused,
        "rounds": len(every),
        "within_tolerance": sum(-0.001 <= each <= TOLERANCE_S for each in every),
        "earliest_s": min(every),
        "latest_s": max(every),
        "median_without_s": float(np.median(without)),
        "median_with_s": float(np.median(with_it)),
        "furthest_apart_s": round(max(apart), 4),
    }


def main() -> None:
    """Measure what is missing, and write after each pair."""
    warnings.filterwarnings("ignore", "There is a performance drop")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--again", type=int, nargs="*", default=[])
    asked = parser.parse_args()
    pairs: list[dict[str, Any]] = []
    again: list[dict[str, Any]] = []
    if RESULT.exists():
        earlier = json.loads(RESULT.read_text(encoding="utf-8"))
        pairs = earlier["pairs"]
        again = earlier.get("measured_again", [])
    for number in [*range(len(pairs), asked.pairs), *asked.again]:
        (again if number < len(pairs) else pairs).append(tried(number))
        found = {
            "what": "upload_times.py",
            "hardware": hardware(),
            "scheduling": SCHEDULING[os.sched_getscheduler(0)],
            "deadlines.work": WORK_S,
            "tolerance_s": TOLERANCE_S,
            "models": MODELS,
            "rounds": sum(each["rounds"] for each in pairs),
            "within_tolerance": sum(each["within_tolerance"] for each in pairs),
            "pairs": pairs,
            "measured_again": again,
        }
        print(found["within_tolerance"], pairs[-1], again[-1:], flush=True)
        RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
