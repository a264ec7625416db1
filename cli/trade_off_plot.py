"""The trade-off between noise and robustness, as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from precad.common.account.planning import Plan, Setting, privacy_trade_off, robustness_trade_off

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SCHEDULES = 4
_GROUPS = (1, 2, 5, 10)


def draw(plan: Plan, path: Path) -> None:
    """Write a PNG: what robustness and what privacy cost in noise over signal.

    Left: the loss bound of the best setting as C/R' varies, for K, 2K, 5K and 10K attackers
    (left out without attackers). Right: ε as σ varies, for the best four settings.

    Args:
        plan: the best settings first.
        path: where the file goes; it is overwritten.

    Raises:
        OSError: the file can't be written.
    """
    # matplotlib takes a second to import; only who asks for the picture pays. Its Figure alone
    # needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    wanted = plan.wanted
    figure = Figure(figsize=(11 if wanted.malicious else 6, 4.8), layout="constrained")
    panels = figure.subplots(1, 2 if wanted.malicious else 1, squeeze=False)[0]
    _privacy(panels[-1], plan)
    if wanted.malicious:
        _robustness(panels[0], plan)
    for axes in panels:
        axes.axvline(wanted.noise_to_signal, color="tab:green", linestyle="--", linewidth=1)
        axes.set_xscale("log")
        axes.set_xlabel("noise over signal of the run")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    figure.suptitle(
        f"{wanted.clients} clients, {wanted.records} records each, d = {wanted.dimension}; "
        "green: wanted",
        fontsize=10,
    )
    figure.savefig(path, dpi=120)


def _robustness(axes: "Axes", plan: Plan) -> None:
    wanted, setting = plan.wanted, plan.settings[0]
    for times in _GROUPS:
        malicious = times * wanted.malicious
        axes.plot(*robustness_trade_off(wanted, setting, malicious), label=f"{malicious} malicious")
    axes.plot(
        setting.noise_to_signal, setting.worst_loss, "ko", label=f"C = {setting.clip_ratio:.3g}·R'"
    )
    axes.axhline(wanted.tolerated_loss, color="tab:green", linestyle="--", linewidth=1)
    axes.axhline(wanted.loss, color="grey", linestyle=":", linewidth=1, label="without attackers")
    axes.set_ylim(0, 1.02 * wanted.loss_bound)
    axes.set_ylabel("expected loss, at most (central limit theorem)")
    axes.set_title(f"Robustness as C/R' varies: {_named(setting)}", fontsize=9)


def _privacy(axes: "Axes", plan: Plan) -> None:
    wanted = plan.wanted
    for setting in plan.settings[:_SCHEDULES]:
        axes.plot(*privacy_trade_off(wanted, setting), marker=".", label=_named(setting))
    axes.axhline(wanted.epsilon, color="tab:green", linestyle="--", linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel(f"ε of a record at δ = {wanted.delta:g}, one curious server")
    axes.set_title("Privacy as σ varies, C = p·m·R'", fontsize=9)


def _named(setting: Setting) -> str:
    run = setting.run
    return (
        f"p={run.record_rate:g}, q={run.client_rate:g}, T={run.rounds}, "
        f"σ={run.noise_multiplier:.3g}"
    )
