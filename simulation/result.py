"""A simulation's result: rounds, weights, a picture, and the ε of such a real run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save as safetensors_bytes
from torch import nn

from precad.accounting import (
    RECORD_LEVEL,
    Adversary,
    PrivacyStatement,
    Run,
    epsilon_spent,
)
from precad.accounting.guarantees import guarantees
from precad.client.gradients import load_vector
from precad.common import (
    Floats32,
    Task,
    frozen_kw_only_dataclass,
    json_of,
    tensors,
    upper,
    write_file,
)

FORMAT = "precad-simulation-1"
"""The format's name in a saved simulation; nothing that reads real runs takes it."""
Row = dict[str, float | None]
"""A round's numbers by the column's name."""


@frozen_kw_only_dataclass
class SimulatedRound:
    """One round of a simulation."""

    number: int
    """1 for the first round."""
    accuracy: float | None = None
    """Accuracy on the held-out records after this round; None where there are none, or
    no classes."""
    loss: float | None = None
    """Mean loss on the held-out records after this round; None where there are none."""
    r_squared: float | None = None
    """Of numbers: R² on the held-out records; None of classes."""
    cohort: int
    """How many clients were drawn."""
    accepted: int
    """How many updates counted."""
    rejected: dict[str, int]
    """How many updates didn't count, by reason, ``absent`` among them."""
    records: int
    """How many records the cohort sampled."""
    failed: int
    """How many of them gave no gradient and counted as zero."""
    participations: int
    """T_i of the client that was counted most often so far."""
    seconds: float = 0.0
    """How long the round took."""
    quality: str = ""
    """How good the model is on the held-out records, in a few words after a comma."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SimulatedTraining:
    """A simulated training: it protected nobody, and no certificate comes of it."""

    task: Task
    """The task with the clients and rounds that were simulated."""
    seed: int
    """The seed, which repeats it with the same data, functions and device."""
    path: str
    """``stacked`` or ``per-client``."""
    theta: Floats32 = field(repr=False)
    """The final weights as one vector, ``[d]``."""
    rounds: tuple[SimulatedRound, ...] = field(repr=False)
    """All rounds in their order."""
    replaced: tuple[str, ...] = ()
    """Which of sampler, cohort, noise and aggregate weren't the protocol's own. Where
    there are any, no ε is stated: the accountants know the protocol alone."""
    attackers: int = 0
    """How many clients were bad."""
    largest: int = 0
    """How many records the largest owner has."""
    units: int = 0
    """How many records, or other units, all owners have."""
    off_plan: str = ""
    """How far the owners' records are from what the task plans for, in words; empty
    where they are near."""
    simulated: bool = field(default=True, init=False)
    """Always True."""

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy on the held-out records after the last round."""
        return self.rounds[-1].accuracy

    @property
    def weights(self) -> dict[str, Floats32]:
        """Return the final weights by the parameters' names."""
        return tensors(self.theta, self.task.mechanism.parameters)

    def load_into(self, module: nn.Module) -> nn.Module:
        """Copy the final weights into a module of the task's shapes, and return it."""
        load_vector(module, self.theta)
        return module

    def epsilon(self, number: int) -> tuple[float, float] | None:
        """Return the exact ε of a unit after ``number`` real rounds.

        The first is against one curious server, the second against other clients, both
        for the client that was counted most often. None where parts were replaced.
        """
        if self.replaced:
            return None
        participations = self.rounds[number - 1].participations
        run = Run.of(self.task)
        by_server, by_clients = (
            epsilon_spent(
                run.step(adversary),
                delta=self.task.privacy.delta,
                counts={0: participations},
            )
            for adversary in RECORD_LEVEL
        )
        return by_server, by_clients

    def statements(self) -> tuple[PrivacyStatement, ...]:
        """Return every guarantee of such a real run, by every accountant.

        None are stated where parts were replaced.
        """
        if self.replaced:
            return ()
        last = self.rounds[-1]
        run = Run.of(self.task, rounds=last.number, participations=last.participations)
        return guarantees(run, self.task.privacy.delta, tuple(Adversary))

    @property
    def _reasons(self) -> list[str]:
        """Return the reasons why updates didn't count, in the order of the alphabet."""
        return sorted({reason for each in self.rounds for reason in each.rejected})

    def table(self) -> list[Row]:
        """Return one flat dictionary for each round, ready for a data frame."""
        rows = []
        for played in self.rounds:
            by_server, by_clients = self.epsilon(played.number) or (None, None)
            rejected = {
                reason: played.rejected.get(reason, 0) for reason in self._reasons
            }
            rows.append(
                {
                    "round": played.number,
                    "accuracy": played.accuracy,
                    "loss": played.loss,
                    "r_squared": played.r_squared,
                    "cohort": played.cohort,
                    "accepted": played.accepted,
                    **rejected,
                    "records": played.records,
                    "failed": played.failed,
                    "participations": played.participations,
                    "epsilon_server": by_server,
                    "epsilon_clients": by_clients,
                    "seconds": played.seconds,
                    "simulated": True,
                }
            )
        return rows

    def summary(self) -> dict[str, object]:
        """Return everything but the weights as one JSON object."""
        statements = [statement.to_json() for statement in self.statements()]
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
            "accounts_of_such_a_run": statements,
        }

    def save(self, path: str | Path) -> None:
        """Write ``summary`` as JSON; the file appears whole or not at all."""
        text = json_of(self.summary(), indent=1)
        write_file(Path(path), (text + "\n").encode(), mode=0o644)

    def save_weights(self, path: str | Path) -> None:
        """Write the final weights as safetensors, which are marked as simulated.

        So nothing takes them for a real run's model.
        """
        named = {
            name: np.ascontiguousarray(value) for name, value in self.weights.items()
        }
        write_file(Path(path), safetensors_bytes(named, {"format": FORMAT}))

    def plot(self, path: str | Path) -> None:
        """Write a picture: accuracy, ε, and what counted and what didn't, by round.

        Its title says SIMULATED. The path's suffix chooses PNG, PDF or SVG.
        """
        clients = f"{self.task.enrolment.clients} clients"
        bad = f", {self.attackers} of them bad" if self.attackers else ""
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
        """Return the training in a few words, for people."""
        last = self.rounds[-1]
        spent = self.epsilon(len(self.rounds))
        if spent is None:
            privacy = f"no ε: {', '.join(self.replaced)} replaced"
        else:
            by_server, _ = spent
            privacy = (
                f"a real run would have spent ε = {upper(by_server, 3)} (δ = "
                f"{self.task.privacy.delta:g}) of {self.task.mechanism.unit.one}"
                " against one curious server"
            )
        return (
            f"simulated training of {self.task.name}: {self.task.enrolment.clients}"
            f" clients, {len(self.rounds)} rounds{last.quality}; {privacy}"
        )


def draw_training(
    path: Path,
    rows: Sequence[Mapping[str, float | None]],
    counted: Sequence[str],
    *,
    title: str,
    epsilon_of: str,
    updates: str,
    no_epsilon: str = "",
) -> None:
    """Write accuracy, ε of both adversaries and updates, by round, as a picture.

    Args:
        path: its suffix chooses PNG, PDF or SVG.
        rows: as ``SimulatedTraining.table`` gives them.
        counted: the columns whose numbers of updates are stacked; without any there
            are two plots.
        title: stands above the plots.
        epsilon_of: whose ε it is, for the axis.
        updates: what the stacked numbers are, for the axis.
        no_epsilon: why none is stated, where that is so.
    """
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    numbers = [row["round"] for row in rows]
    heights = (3, 2, 1) if counted else (3, 2)
    figure = Figure(figsize=(8, 7), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    top, middle = axes[:2]
    last = axes[-1]
    name = "accuracy"
    if rows[0].get("r_squared") is not None:
        name = "r_squared"
    measured = [row for row in rows if row[name] is not None]
    if measured:
        top.plot(
            [row["round"] for row in measured],
            [row[name] for row in measured],
            marker=".",
            markersize=4,
        )
    else:
        top.text(
            0.5,
            0.5,
            "no held-out records were given",
            ha="center",
            transform=top.transAxes,
        )
    top.set(ylim=(0, 1), ylabel=f"{name} on held-out records")
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
        middle.plot(
            numbers,
            [row["epsilon_server"] for row in rows],
            color="tab:red",
            label="one curious server",
        )
        middle.plot(
            numbers,
            [row["epsilon_clients"] for row in rows],
            color="tab:orange",
            linestyle="--",
            label="other clients only",
        )
        middle.set_ylim(bottom=0)
        middle.legend(loc="upper left")
    middle.set_ylabel(f"exact ε of {epsilon_of}")
    middle.grid(alpha=0.3)
    bottom = np.zeros(len(rows))
    for column in counted:
        counts = np.array([row[column] for row in rows])
        last.bar(
            numbers,
            counts,
            bottom=bottom,
            label=column,
        )
        bottom += counts
    if counted:
        last.set_ylabel(updates)
        last.yaxis.set_major_locator(MaxNLocator(integer=True))
        last.legend(loc="lower right", fontsize="small")
    last.set_xlabel("round")
    figure.savefig(path, dpi=120)
