"""Accuracy and ε by round, as a picture."""

from pathlib import Path

from precad.cli.demo.outcome import Outcome


def plot(outcome: Outcome, path: Path) -> None:
    """Write a PNG: accuracy above, exact ε of both adversaries and rejections below."""
    import matplotlib as mpl  # noqa: PLC0415 -- seconds to import

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    rows = outcome.rows
    plan = outcome.plan
    rounds = [row.number + 1 for row in rows]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 6.5), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    measured = [(row.number + 1, row.accuracy) for row in rows if row.accuracy is not None]
    top.plot(*zip(*measured, strict=True), color="tab:blue", marker=".", markersize=4)
    top.set_ylabel("accuracy on held-out records")
    top.set_ylim(0, 1)
    top.grid(alpha=0.3)
    bad = f", {len(plan.bad)} of them {plan.attack}" if plan.bad else ""
    top.set_title(
        f"{plan.dataset.name}, {plan.model}: {len(plan.data)} data owners{bad}", loc="left"
    )
    delta = plan.task.privacy.delta
    bottom.plot(
        rounds, [row.epsilon_server for row in rows], color="tab:red", label="one curious server"
    )
    bottom.plot(
        rounds,
        [row.epsilon_clients for row in rows],
        color="tab:orange",
        linestyle="--",
        label="other clients only",
    )
    bottom.set_ylabel(f"exact ε of a record (δ = {delta:g})")
    bottom.set_xlabel("round")
    bottom.set_ylim(bottom=0)
    bottom.grid(alpha=0.3)
    handles, labels = bottom.get_legend_handles_labels()
    if outcome.rejected:
        counts = bottom.twinx()
        bars = counts.bar(
            rounds,
            [sum(row.rejected.values()) for row in rows],
            color="grey",
            alpha=0.35,
            width=0.8,
            label="submissions rejected or absent",
        )
        counts.set_ylabel("rejected or absent")
        counts.set_ylim(0, len(plan.data))
        handles.append(bars)
        labels.append("rejected or absent")
    bottom.legend(handles, labels, loc="upper left")
    figure.savefig(path, dpi=120)
    plt.close(figure)
