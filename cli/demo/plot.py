"""Accuracy and ε by round, as a picture."""

from pathlib import Path

from precad.cli.demo.outcome import Outcome


def load_plot() -> None:
    """Load what ``plot`` needs: a second."""
    import matplotlib.backends.backend_agg  # noqa: PLC0415
    import matplotlib.figure  # noqa: F401, PLC0415


def plot(outcome: Outcome, path: Path) -> None:
    """Write a PNG: accuracy above, exact ε of both adversaries and rejections below."""
    # A second to import. A Figure alone needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    rows = outcome.rows
    scenario = outcome.scenario
    rounds = [row.number for row in rows]
    heights = (3, 2, 1) if outcome.rejected else (3, 2)
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    top, middle = axes[0], axes[1]
    measured = [(row.number, row.accuracy) for row in rows if row.accuracy is not None]
    top.plot(*zip(*measured, strict=True), color="tab:blue", marker=".", markersize=4)
    top.set_ylabel("accuracy on held-out records")
    top.set_ylim(0, 1)
    top.grid(alpha=0.3)
    bad = f", {len(scenario.bad)} of them bad ({scenario.attack})" if scenario.bad else ""
    top.set_title(
        f"{scenario.dataset.name}, {scenario.model}: {len(scenario.data)} data owners{bad}",
        loc="left",
    )
    delta = scenario.task.privacy.delta
    server, clients = zip(*((row.epsilon_server, row.epsilon_clients) for row in rows), strict=True)
    middle.plot(rounds, server, color="tab:red", label="one curious server")
    middle.plot(rounds, clients, color="tab:orange", linestyle="--", label="other clients only")
    middle.set_ylabel(f"exact ε of a record\n(δ = {delta:g})")
    middle.set_ylim(bottom=0)
    middle.grid(alpha=0.3)
    middle.legend(loc="upper left")
    if outcome.rejected:
        below = [0] * len(rows)
        for reason in sorted(outcome.rejected):
            counts = [row.rejected.get(reason, 0) for row in rows]
            axes[2].bar(rounds, counts, bottom=below, width=0.8, label=reason)
            below = [low + count for low, count in zip(below, counts, strict=True)]
        axes[2].set_ylabel("not counted")
        axes[2].yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[2].legend(loc="upper right", fontsize="small")
    axes[-1].set_xlabel("round")
    figure.savefig(path, dpi=120)
