"""When an owner's upload begins at hostile models, with one record and without it.

Writes results/hostile_models.json beside itself. A malicious server serves θ at which a
record with some property, the last one, makes activations overflow. Each pair of model
and loss of tests/rig/hostile_pairs.py is trained by a `DataOwner` on the way of `precad
join`, over TLS against two servers that serve a hostile model a round, or is refused
before enrolment. For a refused pair, the work with the record over the work without it
says what the refusal is for.
"""

import json
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]  # as `make bench` runs each script

import precad  # noqa: E402, F401, I001 -- before gRPC, which reads its ciphers once
import numpy as np  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from tests.rig.fake_server import FakeServer, started  # noqa: E402
from tests.rig.hostile_pairs import PAIRS, RATE, N, records_for, with_property  # noqa: E402
from tests.rig.keys import identity  # noqa: E402
from tests.rig.tasks import task_with  # noqa: E402

from benchmarks.rounds.hardware import hardware  # noqa: E402
from precad.client.data_owner import DataOwner  # noqa: E402
from precad.client.gradients.hostile_models import hostile_models  # noqa: E402
from precad.client.gradients.local_update import local_update, most_records  # noqa: E402
from precad.client.gradients.torch_models import model_section  # noqa: E402
from precad.client.participation import RoundView  # noqa: E402
from precad.common.errors import Misconfiguration  # noqa: E402
from precad.common.identifiers import ClientId, Role  # noqa: E402
from precad.common.identity.party_certificate import Principal  # noqa: E402
from precad.common.ring import RingVector  # noqa: E402
from precad.common.task import Task  # noqa: E402

RESULT = Path(__file__).parent / "results" / "hostile_models.json"
WARD = ClientId("ward-1")
WORK_S = 0.5
"""``deadlines.work``: the public time."""
TOLERANCE_S = 0.25
"""An upload that begins within so many seconds of the public time begins at it."""
RESAMPLES, REPEATS, TURNS = 2_000, 5, 1


@dataclass(slots=True)
class HostileServer(FakeServer):
    """Serves another hostile model in each round."""

    served: list[NDArray[np.float64]] = field(default_factory=list)

    def model(self, version: int = 0) -> bytes:
        """The digest of the version's."""
        self.theta = self.served[min(version, len(self.served) - 1)]
        return super(HostileServer, self).model(version)

    def FetchModel(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The version's."""
        self.model(request.version)
        return super(HostileServer, self).FetchModel(request, context)


class Timed(DataOwner):
    """Notes how long each round's work takes."""

    took: list[float]

    def update(self, view: RoundView) -> RingVector:
        """As its own, timed."""
        began = time.perf_counter()
        found = super().update(view)
        self.took.append(time.perf_counter() - began)
        return found


def sendable(theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """With numbers that are infinite in float32, for owners take finite ones alone."""
    signs = np.where(np.arange(len(theta)) % 2, 1e300, -1e300)
    found: NDArray[np.float64] = np.where(
        np.isnan(theta), signs, np.clip(theta, -1e300, 1e300)
    )
    return found


def trained(
    task: Task, name: str, thetas: list[NDArray[np.float64]], records: Any
) -> Any:
    """Seconds from the public time to the first and the last upload, and of the work, by round."""
    model, loss, _, _ = PAIRS[name]
    shared: dict[str, Any] = {"versions": {}, "opened": {}, "served": thetas}
    servers = [
        HostileServer(role, task, thetas[0], rounds=len(thetas), paced=True, **shared)
        for role in (Role.SERVER_A, Role.SERVER_B)
    ]
    servers[0].says_over = True
    with started(*servers):
        owner = Timed(
            WARD.name, task=task, data=(records.inputs, records.targets), model=model, loss=loss,
            server_a=servers[0].address, server_b=servers[1].address, record_rate=RATE,
            identity=identity(Principal.client(WARD.name)),
        )  # fmt: skip
        owner.took = []
        owner.run(progress=False)
    both = zip(*(server.came_after for server in servers), strict=True)
    late = [each - WORK_S for pair in both for each in (min(pair), max(pair))]
    return late, owner.took


def interval(with_it: list[float], without: list[float]) -> list[float]:
    """The median of the rounds' ratios, and its 95 % interval by the bootstrap."""
    ratios = np.array(with_it) / np.array(without)
    drawn = np.random.default_rng(1).choice(ratios, (RESAMPLES, len(ratios)))
    found = [np.median(ratios), *np.quantile(np.median(drawn, axis=1), [0.025, 0.975])]
    return [round(float(each), 3) for each in found]


def work_of_a_refused(
    task: Task, name: str, thetas: list[NDArray[np.float64]]
) -> list[float]:
    """The largest ratio over models, with its interval."""
    model, loss, targets, _ = PAIRS[name]
    records, most = records_for(targets), most_records(N, RATE)
    found, some = [], np.arange(N - N // 4, N)
    for theta in thetas:
        took: list[list[float]] = [[], []]
        for indices, seconds in [(some, took[0]), (some[:-1], took[1])] * REPEATS:
            began = time.perf_counter()
            local_update(model, loss, records, indices, theta, task, most=most)
            seconds.append(time.perf_counter() - began)
        found.append(interval(*took))
    return max(found)


def tried(name: str) -> dict[str, Any]:
    """One pair: refused, or when its uploads began."""
    model, _, targets, _ = PAIRS[name]
    task = task_with(
        {
            "model": model_section(model, architecture="custom", initial="uniform"),
            "privacy.record_rate": RATE,
            "deadlines.work": WORK_S,
            "training.rounds": 100,
            "enrolment.max_expected_records": float(N),
        }
    )
    thetas = [sendable(theta) for _, theta in hostile_models(task.dimension)]
    thetas += [with_property(task.dimension)] * 2
    records = records_for(targets)
    without = records_for(targets)
    without.inputs[-1] = records.inputs[0]
    every: list[float] = []
    took: list[list[float]] = [[], []]
    try:
        # In turns, for other programs come and go.
        for mine, seconds in zip((records, without) * TURNS, took * TURNS, strict=True):
            late, work = trained(task, name, thetas, mine)
            every += late
            seconds.extend(work)
    except Misconfiguration as error:
        if not PAIRS[name][3]:
            raise
        ratio = work_of_a_refused(task, name, thetas)
        return {"pair": name, "refused": str(error), "work_with_over_without": ratio}
    return {
        "pair": name,
        "rounds": len(took[0]) + len(took[1]),
        "at_the_public_time": sum(
            first >= 0 and last <= TOLERANCE_S
            for first, last in zip(every[::2], every[1::2], strict=True)
        ),
        "latest_s": round(max(every), 4),
        "longest_work_s": round(max(took[0] + took[1]), 4),
        "work_with_over_without": interval(*took),
    }


def main() -> None:
    """Measure and write."""
    warnings.filterwarnings("ignore", "There is a performance drop")
    torch.set_num_threads(1)
    pairs = []
    for name in PAIRS:
        pairs.append(tried(name))
        print(pairs[-1], flush=True)
    found = {
        "what": "hostile_models.py",
        "hardware": hardware(),
        "public_time_s": WORK_S,
        "tolerance_s": TOLERANCE_S,
        "rounds": sum(pair.get("rounds", 0) for pair in pairs),
        "at_the_public_time": sum(pair.get("at_the_public_time", 0) for pair in pairs),
        "refused": sum("refused" in pair for pair in pairs),
        "pairs": pairs,
    }
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
