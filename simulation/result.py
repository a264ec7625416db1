"""What a simulation gave: rounds, weights, a picture, and the accounts of such a real run."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_jsonable_python
from safetensors.numpy import save as safetensors_bytes
from torch import nn

from precad.accounting.adversaries import RECORD_LEVEL, Adversary, Run
from precad.accounting.exact import epsilon_spent
from precad.accounting.guarantees import PrivacyStatement, guarantees
from precad.client.gradients.torch_models import load_vector
from precad.common.files import write_file
from precad.common.mechanism import Unit
from precad.common.model import tensors
from precad.common.task import Task
from precad.common.terminal import upper

FORMAT = "precad-simulation-1"
"""Of a saved simulation; nothing that reads real runs takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRound:
    """One round of a simulation; the first has number 1."""

    number: int
    accuracy: float | None
    """On the held-out records after this round; None where there are none, or no
    classes."""
    loss: float | None
    """Its mean there; None where there are none."""
    cohort: int
    """How many were drawn."""
    accepted: int
    rejected: dict[str, int]
    """How many updates didn't count, by reason, ``absent`` among them."""
    records: int
    """That the cohort sampled."""
    failed: int
    """Of them, those that gave no gradient and counted as zero."""
    participations: int
    """T_i of the client that was counted most often so far."""
    seconds: float


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SimulatedTraining:
    """A simulated training: nobody's records were protected, no certificate can be made of it."""

    task: Task
    """With the clients and rounds that were."""
    seed: int
    """Repeats it, with the same data, functions and device."""
    path: str
    """``stacked`` or ``per-client``."""
    theta: NDArray[np.float32] = field(repr=False)
    """The final weights as one vector, ``[d]``."""
    rounds: tuple[SimulatedRound, ...] = field(repr=False)
    replaced: tuple[str, ...] = ()
    """Which of sampler, cohort, noise and aggregate weren't the protocol's own. Where
    there are any, no ε is stated: the accountants know the protocol alone."""
    attackers: int = 0
    """How many clients were bad."""
    largest: int = 0
    """How many records the largest owner has."""
    off_plan: str = ""
    """How far the owners' records are from what the task plans for, in words; empty
    where they are near."""
    simulated: bool = field(default=True, init=False)

    @property
    def accuracy(self) -> float | None:
        """On the held-out records after the last round."""
        return self.rounds[-1].accuracy

    @property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """The final weights by the parameters' names."""
        return tensors(self.theta, self.task.model.parameters)

    def load_into(self, module: nn.Module) -> nn.Module:
        """Copy the final weights into a module of the task's shapes, and return it."""
        load_vector(module, self.theta)
        return module

    def epsilon(self, number: int) -> tuple[float, float] | None:
        """Return exact ε of a unit after ``number`` real rounds; None where parts were replaced.

        Against one curious server, and other clients, for the client that was counted
        most often.
        """
        if self.replaced:
            return None
        participations = self.rounds[number - 1].participations
        run = Run.of(self.task)
        by_server, by_owners = (
            epsilon_spent(
                run.step(adversary),
                delta=self.task.privacy.delta,
                participations=participations,
            )
            for adversary in RECORD_LEVEL
        )
        return by_server, by_owners

    def statements(self) -> tuple[PrivacyStatement, ...]:
        """Every guarantee of a real run by every accountant; none where parts were replaced."""
        if self.replaced:
            return ()
        last = self.rounds[-1]
        run = Run.of(self.task, rounds=last.number, participations=last.participations)
        return guarantees(run, self.task.privacy.delta, tuple(Adversary))

    @property
    def _reasons(self) -> list[str]:
        """Why updates didn't count."""
        return sorted({reason for each in self.rounds for reason in each.rejected})

    def table(self) -> list[dict[str, Any]]:
        """One flat dictionary a round, ready for a frame."""
        rows = []
        for each in self.rounds:
            server, clients = self.epsilon(each.number) or (None, None)
            rows.append(
                {
                    "round": each.number,
                    "accuracy": each.accuracy,
                    "loss": each.loss,
                    "cohort": each.cohort,
                    "accepted": each.accepted,
                    **{
                        reason: each.rejected.get(reason, 0) for reason in self._reasons
                    },
                    "records": each.records,
                    "failed": each.failed,
                    "participations": each.participations,
                    "epsilon_server": server,
                    "epsilon_clients": clients,
                    "seconds": each.seconds,
                    "simulated": True,
                }
            )
        return rows

    def summary(self) -> dict[str, Any]:
        """Everything but the weights as one JSON object."""
        return {
            "format": FORMAT,
            "simulated": True,
            "note": (
                "A simulation in one process: it protected nobody and certifies"
                " nothing."
            ),
            "task": self.task.model_dump(mode="json"),
            "seed": self.seed,
            "path": self.path,
            "replaced": list(self.replaced),
            "clients": self.task.enrolment.clients,
            "attackers": self.attackers,
            "accuracy": self.accuracy,
            "history": self.table(),
            "accounts_of_such_a_run": [each.to_json() for each in self.statements()],
        }

    def save(self, path: str | Path) -> None:
        """Write ``summary`` as JSON; the file appears whole or not at all."""
        plain = to_jsonable_python(self.summary(), inf_nan_mode="null")
        text = json.dumps(plain, indent=1, allow_nan=False)
        write_file(Path(path), (text + "\n").encode(), mode=0o644)

    def save_weights(self, path: str | Path) -> None:
        """Write the final weights as safetensors, marked as simulated: no model of a real run."""
        named = {
            name: np.ascontiguousarray(value) for name, value in self.weights.items()
        }
        write_file(Path(path), safetensors_bytes(named, {"format": FORMAT}))

    def plot(self, path: str | Path) -> None:
        """Write a picture: accuracy, ε and what was rejected, by round; it says simulated."""
        bad = f", {self.attackers} of them bad" if self.attackers else ""
        clients = f"{self.task.enrolment.clients} clients"
        missing = f"no ε is stated: {', '.join(self.replaced)} replaced"
        draw_training(
            Path(path),
            self.table(),
            ["accepted", *self._reasons],
            title=f"SIMULATED: {self.task.name}, {clients}{bad}",
            epsilon_of=f"a real run\n(δ = {self.task.privacy.delta:g})",
            updates="updates",
            no_epsilon=missing if self.replaced else "",
        )

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        """In a few words, for people."""
        last = self.rounds[-1]
        learnt = "" if last.loss is None else f", loss {last.loss:.4g}"
        if last.accuracy is not None:
            learnt = f", accuracy {last.accuracy:.1%}"
        spent = self.epsilon(len(self.rounds))
        protects_records = self.task.mechanism.unit is Unit.RECORD
        unit = "a record" if protects_records else "an owner"
        epsilon = (
            f"no ε: {', '.join(self.replaced)} replaced"
            if spent is None
            else (
                f"a real run would have spent ε = {upper(spent[0], 3)} (δ = "
                f"{self.task.privacy.delta:g}) of {unit} against one curious server"
            )
        )
        return (
            f"simulated training of {self.task.name}: {self.task.enrolment.clients}"
            f" clients, {len(self.rounds)} rounds{learnt}; {epsilon}"
        )


def draw_training(
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    counted: Sequence[str],
    *,
    title: str,
    epsilon_of: str,
    updates: str,
    no_epsilon: str = "",
) -> None:
    """Write accuracy, ε of both adversaries and updates by round, as PNG, PDF or SVG by the suffix.

    ``rows`` are as ``SimulatedTraining.table`` has them, and ``counted`` columns whose
    numbers of ``updates`` are stacked; without any there are two plots. ``no_epsilon``
    says why none is stated, where that is so.
    """
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    numbers = [row["round"] for row in rows]
    heights = (3, 2, 1) if counted else (3, 2)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    top = axes[0]
    middle = axes[1]
    last = axes[-1]
    measured = [
        (row["round"], row["accuracy"]) for row in rows if row["accuracy"] is not None
    ]
    if measured:
        top.plot(
            *zip(*measured, strict=True), color="tab:blue", marker=".", markersize=4
        )
    else:
        top.text(
            0.5,
            0.5,
            "no held-out records were given",
            ha="center",
            transform=top.transAxes,
        )
    top.set(ylim=(0, 1), ylabel="accuracy on held-out records")
    top.grid(alpha=0.3)
    top.set_title(title, loc="left")
    if no_epsilon:
        middle.text(
            0.5,
            0.5,
            no_epsilon,
            ha="center",
            transform=middle.transAxes,
        )
    else:
        server, others = (
            [row[f"epsilon_{of}"] for row in rows] for of in ("server", "clients")
        )
        middle.plot(numbers, server, color="tab:red", label="one curious server")
        middle.plot(
            numbers,
            others,
            color="tab:orange",
            linestyle="--",
            label="other clients only",
        )
        middle.set_ylim(bottom=0)
        middle.legend(loc="upper left")
    middle.set_ylabel(f"exact ε of {epsilon_of}")
    middle.grid(alpha=0.3)
    below = np.zeros(len(rows))
    for name in counted:
        counts = np.array([row[name] for row in rows])
        last.bar(
            numbers,
            counts,
            bottom=below,
            width=0.8,
            label=name,
        )
        below += counts
    if counted:
        last.set_ylabel(updates)
        last.yaxis.set_major_locator(MaxNLocator(integer=True))
        last.legend(loc="lower right", fontsize="small")
    last.set_xlabel("round")
    figure.savefig(path, dpi=120)
