"""A simulation by round, as a picture."""

from pathlib import Path

from precad.simulation.result import SimulatedTraining


def plot(training: SimulatedTraining, path: Path) -> None:
    """Write the picture in the format that the file's name ends with: PNG, PDF, SVG."""
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    rows = training.table()
    numbers = [row["round"] for row in rows]
    figure = Figure(figsize=(8, 7), layout="constrained")
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 1))
    measured = [(row["round"], row["accuracy"]) for row in rows if row["accuracy"] is not None]
    if measured:
        top.plot(*zip(*measured, strict=True), color="tab:blue", marker=".", markersize=4)
    else:
        top.text(0.5, 0.5, "no held-out records were given", ha="center", transform=top.transAxes)
    top.set_ylim(0, 1)
    top.set_ylabel("accuracy on held-out records")
    top.grid(alpha=0.3)
    bad = f", {training.attackers} of them bad" if training.attackers else ""
    top.set_title(
        f"SIMULATED: {training.task.name}, {training.task.enrolment.clients} clients{bad}",
        loc="left",
    )
    if training.replaced:
        text = f"no ε is stated: {', '.join(training.replaced)} replaced"
        middle.text(0.5, 0.5, text, ha="center", transform=middle.transAxes)
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
    middle.set_ylabel(f"exact ε of a real run\n(δ = {training.task.privacy.delta:g})")
    middle.grid(alpha=0.3)
    below = [0] * len(rows)
    reasons = sorted({reason for each in training.rounds for reason in each.rejected})
    for reason in ("accepted", *reasons):
        counts = [row[reason] for row in rows]
        bottom.bar(numbers, counts, bottom=below, width=0.8, label=reason)
        below = [low + count for low, count in zip(below, counts, strict=True)]
    bottom.set_ylabel("updates")
    bottom.yaxis.set_major_locator(MaxNLocator(integer=True))
    bottom.legend(loc="lower right", fontsize="small")
    bottom.set_xlabel("round")
    figure.savefig(path, dpi=120)
