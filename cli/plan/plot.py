"""The trade-offs around one setting, as a picture; the setting lies on every curve."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from precad.accounting.forecast import forecast
from precad.accounting.guarantees import Run
from precad.accounting.participations import record_epsilon
from precad.accounting.planning import Change, Setting, Wanted, client_mu, training_of
from precad.accounting.search import Plan
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NOISES = (0.5, 0.6, 0.75, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0)
_CLIPS = tuple(float(each) for each in np.geomspace(1e-3, 1, 40)) + tuple(
    float(each) for each in np.geomspace(1.1, 30, 20)
)
_STEPS = tuple(float(each) for each in 10.0 ** np.linspace(-2, 2, 81))


def draw(made: Plan, path: Path) -> None:
    """Write the picture as a PNG, whatever the file's name; it is overwritten.

    Raises:
        Misconfiguration: the file can't be written.
    """
    try:
        figure_of(made).savefig(path, dpi=120, format="png")
    except OSError as error:
        raise Misconfiguration("plot", str(path), f"can't be written: {error}") from None


def figure_of(made: Plan) -> "Figure":
    """Three panels around the chosen setting (the first one where none meets everything).

    ε and forecast as σ varies; the forecast and what keeps it down as η varies; loss bounds and
    forecast as C varies. What varies is all that changes.
    """
    # matplotlib takes a second to import; only who asks for the picture pays. Its Figure alone
    # needs no display and keeps no global state.
    from matplotlib.figure import Figure  # noqa: PLC0415

    setting = made.best or made.settings[0]
    figure = Figure(figsize=(15, 4.8), layout="constrained")
    panels = figure.subplots(1, 3)
    _privacy(panels[0], made.wanted, setting)
    _steps(panels[1], made.wanted, setting)
    _robustness(panels[2], made.wanted, setting)
    for axes in panels:
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    privacy, training = setting.task.privacy, setting.task.training
    figure.suptitle(
        f"Planned: p={privacy.record_rate:g}, q={privacy.client_rate:g}, T={training.rounds}, "
        f"σ={privacy.noise_multiplier:.4g}, R={privacy.record_clip:g}, "
        f"C={privacy.client_clip:g}, η={training.learning_rate:g}; black: this setting, "
        "green: wanted",
        fontsize=10,
    )
    return figure


def _privacy(axes: "Axes", wanted: Wanted, setting: Setting) -> None:
    privacy, training = setting.task.privacy, training_of(wanted, setting.task)
    epsilons, accuracies = [], []
    for times in _NOISES:
        sigma = times * privacy.noise_multiplier
        epsilons.append(
            record_epsilon(
                record_rate=privacy.record_rate,
                noise_multiplier=sigma,
                participations=setting.participations,
                delta=wanted.delta,
            )
        )
        accuracies.append(forecast(replace(training, noise_multiplier=sigma)).accuracy)
    axes.plot(epsilons, accuracies, marker=".", label="σ from half to four times")
    axes.plot([setting.epsilon], [setting.forecast.accuracy], "ko")
    axes.axvline(wanted.epsilon, color="tab:green", linestyle="--", linewidth=1)
    _plain_log(axes)
    axes.set_xlabel(f"ε of a record at δ = {wanted.delta:g}, one curious server")
    axes.set_ylabel("accuracy, forecast")
    axes.set_title("Privacy against accuracy", fontsize=9)


def _steps(axes: "Axes", wanted: Wanted, setting: Setting) -> None:
    training = training_of(wanted, setting.task)
    rates = [times * training.learning_rate for times in _STEPS]
    made = [forecast(replace(training, learning_rate=rate)) for rate in rates]
    axes.plot(rates, [each.accuracy for each in made], color="black", label="accuracy, forecast")
    axes.plot(rates, [each.short for each in made], label="error: too short a way")
    axes.plot(rates, [each.noise + each.drowning for each in made], label="error: noise")
    axes.plot(rates, [each.overshoot for each in made], label="error: overshooting")
    axes.plot([training.learning_rate], [setting.forecast.accuracy], "ko")
    _plain_log(axes)
    axes.set_ylim(0, 1)
    axes.set_xlabel("learning rate η")
    axes.set_title("Underfitting against noise", fontsize=9)


def _robustness(axes: "Axes", wanted: Wanted, setting: Setting) -> None:
    task, training = setting.task, training_of(wanted, setting.task)
    # No task takes a C below R.
    clips = [times * task.privacy.client_clip for times in _CLIPS]
    clips = [clip for clip in clips if clip >= task.privacy.record_clip]
    run = Run.of(task)
    bounds: dict[Change, list[float]] = {change: [] for change in Change}
    for clip in clips:
        mu = client_mu(replace(run, sensitivity_ratio=task.effective_record_clip / clip))
        for change, found in bounds.items():
            found.append(setting.robustness.worst_loss(mu, change))
    for change, found in bounds.items():
        # The two lie on each other where they say nothing.
        axes.plot(
            clips,
            found,
            linestyle="-" if change is Change.REPLACEMENTS else "--",
            label=f"loss bound, {setting.robustness.malicious} by {change}",
        )
        axes.plot([task.privacy.client_clip], [setting.worst_loss(change)], "ko")
    accuracies = [forecast(replace(training, client_clip=clip)).accuracy for clip in clips]
    axes.plot(clips, accuracies, color="black", label="accuracy, forecast")
    axes.plot([task.privacy.client_clip], [setting.forecast.accuracy], "ko")
    if wanted.robust:
        axes.axhline(
            wanted.robustness.tolerated_loss, color="tab:green", linestyle="--", linewidth=1
        )
    _plain_log(axes)
    axes.set_ylim(0, 1.02 * setting.robustness.loss_bound)
    axes.set_xlabel("client clip C")
    axes.set_title("Robustness against accuracy (central limit theorem)", fontsize=9)


def _plain_log(axes: "Axes") -> None:
    """A logarithmic x axis whose few numbers are written out and don't run into each other."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter  # noqa: PLC0415

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=9))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
