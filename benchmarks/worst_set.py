"""Certificates for owners with a share of the data, attacked; results/worst_set.json.

    python benchmarks/worst_set.py [--rounds 1000] [--out FILE]

Owners of 6 to 4,000 records, ``client_clip = { per_record = 2, most = C }``. `precad
certify` says by how much owners with a share of the data can move an expected loss. Here
the owners with that share who can add most do what moves it most: honest, each sends the
longest update that counts in one direction; bad, the longest in the opposite one. A
loss of 0 or 1 is whether a round's released sum lies beyond a limit in that direction.
Rounds are ``precad.simulate``'s, with its coin, noise and validation, and each is a trial
of its own: of what one release can tell. The loss that bad owners reach, less what chance
explains, must stay within the bound; the share of the certified movement that they reach
says how tight the bound is. Owners with twice the share go beyond it.
"""

import argparse
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray

from benchmarks.rounds.hardware import hardware
from precad.accounting.adversaries import Adversary, Run
from precad.accounting.worst_owners import of_worst_owners
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import Direction, Replacements
from precad.certify.inefficacy import attack_bounds
from precad.certify.intervals import clopper_pearson_lower, clopper_pearson_upper
from precad.client.gradients.torch_models import logistic, model_section
from precad.common.identifiers import ClientId
from precad.common.roster import Enrolment
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.rounds import View
from precad.simulation.virtual_owners import Matrix

RESULT = Path(__file__).parent / "results" / "worst_set.json"
SIZES = (4_000, 900, 400, 250, 120, 60, 60, 30, 12, 6)
SHARES = (0.1, 0.3)
RATES = (1.0, 0.4)
P = 0.2
SIGNIFICANCE = 1e-4
"""That chance alone refutes a bound that holds."""
_LOSS = 0.2
"""About the loss without attackers."""


@dataclass(frozen=True, slots=True)
class Attacked:
    """What a set of owners did to the loss, and what is certified for their share.

    Attributes:
        owners: their sizes.
        clean: the loss when they are honest, in the trials.
        reached: the loss when they are bad.
        most: the certified most, from the upper confidence bound of the clean loss.
        refuted: whether the loss that they reach is above it, whatever chance did.
    """

    owners: tuple[int, ...]
    clean: float
    reached: float
    most: float
    refuted: bool


def main() -> None:
    """Attack every share, with and without a coin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for rate, share in itertools.product(RATES, SHARES):
        task = task_by_size(SIZES, rate, given.rounds)
        for times in (1, 2):
            chosen = worst_set(task, SIZES, min(1.0, times * share))
            found = attacked(task, SIZES, share, chosen, seed=1)
            row = {"client_rate": rate, "certified_share": share}
            row["share_of_attackers"] = sum(found.owners) / sum(SIZES)
            row |= {"loss_clean": found.clean, "loss_reached": found.reached}
            row |= {"certified_at_most": found.most, "refuted": found.refuted}
            rows.append(row | {"owners": found.owners})
            print(rows[-1], flush=True)
    written = {"sizes": SIZES, "rounds": given.rounds, "attacks": rows}
    written |= {"hardware": hardware()}
    text = json.dumps(written, indent=1, ensure_ascii=False) + "\n"
    given.out.write_text(text, encoding="utf-8")


def task_by_size(sizes: Sequence[int], client_rate: float, rounds: int) -> Task:
    """A task whose bounds follow owners' sizes, with noise that hides some of them."""
    return Task.parse(
        {
            "name": "by-size",
            "model": model_section(logistic(1, 2), architecture="logistic"),
            "privacy": {
                "record_clip": 0.01,
                "client_clip": {"per_record": 2.0, "most": 4.0},
                "noise_multiplier": 200.0,
                "record_rate": P,
                "client_rate": client_rate,
            },
            "training": {"learning_rate": 1.0, "rounds": rounds},
            "enrolment": {
                "clients": len(sizes),
                "min_clients": 1,
                "max_expected_records": 2 * P * max(sizes),
                "planned_units": sum(sizes),
            },
            "fractional_bits": 20,
        }
    )


def claims_of(task: Task, sizes: Sequence[int]) -> list[Enrolment]:
    """What owners of these sizes enrol with."""
    rate = task.mechanism.unit_rate
    return [
        Enrolment(ClientId(f"owner-{number}"), size, rate)
        for number, size in enumerate(sizes)
    ]


def worst_set(task: Task, sizes: Sequence[int], share: float) -> tuple[int, ...]:
    """The owners with at most the share whose bounds together are the largest, by number."""
    clips = task.mechanism.owner_bounds(claims_of(task, sizes))
    most = share * sum(sizes)
    everybody = range(len(sizes))
    sets = itertools.chain.from_iterable(
        itertools.combinations(everybody, count) for count in range(1, len(sizes) + 1)
    )
    fitting = (each for each in sets if sum(sizes[n] for n in each) <= most + 1e-9)
    return max(fitting, key=lambda each: sum(clips[n] for n in each))


def certified_at_most(
    task: Task, sizes: Sequence[int], share: float, loss: float
) -> float:
    """What `precad certify` says of one release, for owners who turn bad."""
    claims = claims_of(task, sizes)
    event = of_worst_owners(
        Run.of(task).event(Adversary.CLIENT_LEVEL).times(1),
        task.mechanism.owner_bounds(claims),
        [claim.records for claim in claims],
        share,
    )
    bounds = attack_bounds(
        loss,
        1.0,
        Replacements(ExactGroups(event)),
        len(event.group_bounds),
        (Direction.ADDITIONS,),
    )
    return float(bounds.upper)


def attacked(
    task: Task, sizes: Sequence[int], share: float, chosen: Sequence[int], seed: int
) -> Attacked:
    """Play all rounds with these owners honest and with them bad, and compare."""
    honest = _sums(task, sizes, chosen, -1, seed)
    bad = _sums(task, sizes, chosen, 1, seed + 1)
    trials = len(honest)
    limit = np.quantile(honest, 1 - _LOSS)
    clean = int((honest > limit).sum())
    reached = int((bad > limit).sum())
    at_most_clean = float(clopper_pearson_upper(clean, trials, SIGNIFICANCE / 2))
    at_least_reached = float(clopper_pearson_lower(reached, trials, SIGNIFICANCE / 2))
    most = certified_at_most(task, sizes, share, at_most_clean)
    return Attacked(
        owners=tuple(sizes[number] for number in chosen),
        clean=clean / trials,
        reached=reached / trials,
        most=most,
        refuted=at_least_reached > most,
    )


def _sums(
    task: Task, sizes: Sequence[int], chosen: Sequence[int], sign: int, seed: int
) -> NDArray[np.float64]:
    """What each round moved θ along the first axis: one number a round."""
    names = [claim.client.name for claim in claims_of(task, sizes)]
    bad = {names[number] for number in chosen}
    thetas = [0.0]
    simulate(
        task,
        {name: _records(size) for name, size in zip(names, sizes, strict=True)},
        seed=seed,
        attack=partial(_along_one_axis, bad, sign),
        attackers=names,
        sampler=_nothing,
        on_round=lambda _round, theta: thetas.append(float(theta[0])),
    )
    return np.diff(thetas)


def _along_one_axis(bad: set[str], sign: int, updates: Matrix, view: View) -> Matrix:
    """Zeros, and from ``bad`` the longest update that counts."""
    rows = np.zeros_like(updates)
    for row, name, bound in zip(rows, view.clients, view.bounds, strict=True):
        if name in bad:
            row[0] = sign * bound
    return rows


def _nothing(
    _version: int, _client: str, _count: int, _rate: float
) -> NDArray[np.int64]:
    """No record: what owners send doesn't depend on any."""
    return np.zeros(0, np.int64)


def _records(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Records without meaning: their gradients are replaced."""
    return np.zeros((count, 1), np.float32), np.arange(count) % 2


if __name__ == "__main__":
    main()
