"""`precad plan`: which σ, C/R', p, q and T give privacy, robustness and a usable model."""

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from precad.cli.options import Json, TaskFile, print_json, task_numbers

if TYPE_CHECKING:
    from rich.console import Console

    from precad.common.account.planning import Plan, Setting


def plan(
    *,
    records: Annotated[int, Option(help="m: records of each client.")],
    epsilon: Annotated[float, Option(help="ε of a record against one curious server.")],
    task: TaskFile = None,
    clients: Annotated[int | None, Option(help="n: enrolled clients.")] = None,
    dimension: Annotated[int | None, Option(help="d: parameters of the model.")] = None,
    delta: Annotated[float | None, Option(help="δ: above 0 and below 1, like 1e-5.")] = None,
    noise_to_signal: Annotated[
        float,
        Option(
            help="Accuracy proxy wanted: norm of the run's noise over the norm of its signal if "
            "all gradients agreed. Smaller is better; above 1 nothing is learnt."
        ),
    ] = 0.1,
    malicious: Annotated[
        int, Option(help="K: clients that may submit anything. 0: no robustness wanted.")
    ] = 1,
    loss: Annotated[float, Option(help="L: expected loss on one record without attackers.")] = 0.2,
    tolerated_loss: Annotated[
        float, Option(help="The loss that the K clients may cause at most, above L.")
    ] = 0.5,
    loss_bound: Annotated[float, Option(help="B: the largest value that the loss takes.")] = 1.0,
    record_rate: Annotated[list[float] | None, Option(help="p to try; repeat it.")] = None,
    client_rate: Annotated[list[float] | None, Option(help="q to try; repeat it.")] = None,
    rounds: Annotated[list[int] | None, Option(help="T to try; repeat it.")] = None,
    noise_multiplier: Annotated[
        float | None, Option(help="σ, if it is fixed already. Default: the least that ε allows.")
    ] = None,
    clip_ratio: Annotated[
        float | None,
        Option(help="C/R', if it is fixed already. Default: the one with the least noise."),
    ] = None,
    plot: Annotated[Path | None, Option(help="Write the trade-off as a PNG file here.")] = None,
    as_json: Json = False,
) -> None:
    """Which settings give the privacy, robustness and accuracy you want.

    With --task: how that task's setting fares. Without: all combinations
    of the p, q and T to try.

    PRIVACY sets the noise: the least σ for which a record has (ε, δ)
    against one curious server, exactly, over as many participations as
    all but one client in 1,000 will have.

    ROBUSTNESS sets the client clip C against that noise: with K
    malicious clients the expected loss stays below
    B·Φ(Φ⁻¹(L/B) + K·μ). μ is the central limit theorem's: good for
    planning; certify a finished run with precad certify.

    ACCURACY has a proxy, noise over signal, that compares settings; it
    isn't an accuracy.

    For example:

    \b
        precad plan --task task.toml --records 600 --epsilon 2
        precad plan --clients 2000 --records 600 --dimension 7850 \\
          --epsilon 2 --delta 1e-5 --record-rate 0.05 --client-rate 0.1 \\
          --client-rate 1 --rounds 50 --rounds 200 --plot plan.png
    """  # noqa: D301 -- click reads the control character
    given = locals()
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.common.account import planning  # noqa: PLC0415

    of_task = ("clients", "dimension", "delta", "record_rate", "client_rate", "rounds")
    values = given | task_numbers(given, of_task, ("noise_multiplier", "clip_ratio"))
    made = planning.plan(
        planning.Wanted(**{one.name: values[one.name] for one in fields(planning.Wanted)}),
        record_rates=_all(values["record_rate"]),
        client_rates=_all(values["client_rate"]),
        rounds=_all(values["rounds"]),
        noise_multiplier=values["noise_multiplier"],
        clip_ratio=values["clip_ratio"],
    )
    if plot is not None:
        from precad.cli.trade_off_plot import draw  # noqa: PLC0415

        draw(made, plot)
    if as_json:
        print_json(_document(made, plot), indent=2)
    else:
        _show(made, plot)


def _all(values: Any) -> list[Any]:
    """What to try: options give several, a task one."""
    return values if isinstance(values, list) else [values]


def _document(made: "Plan", plot: Path | None) -> dict[str, Any]:
    return {
        "wanted": asdict(made.wanted),
        "floor": asdict(made.floor) if made.floor else None,
        "best": _setting(made.best) if made.best else None,
        "settings": [_setting(setting) for setting in made.settings],
        "plot": str(plot) if plot else None,
    }


def _setting(setting: "Setting") -> dict[str, Any]:
    """One flat JSON object; a μ that leaves floating point is null."""
    values = asdict(setting)
    run = values.pop("run")
    if values["group_mu"] == float("inf"):
        values["group_mu"] = None
    names = ("record_rate", "client_rate", "rounds", "noise_multiplier")
    return {name: run[name] for name in names} | values


def _show(made: "Plan", plot: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from precad.common.account.planning import SettingVerdict  # noqa: PLC0415

    wanted = made.wanted
    console = Console(highlight=False)
    console.print(
        f"Wanted: ε ≤ {wanted.epsilon:g} at δ = {wanted.delta:g} against one curious server, "
        f"noise over signal at most {wanted.noise_to_signal:g}, loss at most "
        f"{wanted.tolerated_loss:g} with {wanted.malicious} malicious of {wanted.clients} clients."
        "\n[dim]loss: at most this; at pmR': the same if the client clip never acted "
        "(C = p·m·R'); MB: uploads of one client.[/]"
    )
    table = Table(box=None, pad_edge=False)
    for name in ("p", "q", "T", "σ", "C/R'", "ε", "noise", "loss", "at pmR'", "MB"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for setting in made.settings:
        run = setting.run
        measured = (
            run.noise_multiplier,
            setting.clip_ratio,
            setting.epsilon,
            setting.noise_to_signal,
            setting.worst_loss,
            setting.unclipped_worst_loss,
            setting.upload_bytes / 1e6,
        )
        table.add_row(
            *(f"{run.record_rate:g}", f"{run.client_rate:g}", str(run.rounds)),
            *(f"{value:.3g}" for value in measured),
            setting.verdict.value,
            style="bold" if setting.verdict is SettingVerdict.MEETS else "dim",
        )
    console.print(table)
    _say_best(console, made)
    _say_robustness(console, made)
    if plot is not None:
        console.print(f"The trade-off is drawn in {plot}.")


def _say_best(console: "Console", made: "Plan") -> None:
    best = made.best
    if best is None:
        console.print(
            "No setting meets everything. Loosen a target, enrol more clients, or use a smaller "
            "model."
        )
        return
    run = best.run
    console.print(
        f"Cheapest: p = {run.record_rate:g}, q = {run.client_rate:g}, T = {run.rounds}, "
        f"σ = {run.noise_multiplier:.4g}, C = {best.clip_ratio:.4g}·R'.",
        style="bold",
    )
    console.print(
        f"It costs each client up to {best.participations} participations, "
        f"{best.gradients:,} per-record gradients and {best.upload_bytes / 1e6:,.1f} MB of "
        f"uploads; a record spends ε = {best.epsilon:.3g} against one curious server and "
        f"{best.epsilon_clients_only:.3g} against other clients."
    )


def _say_robustness(console: "Console", made: "Plan") -> None:
    wanted = made.wanted
    if made.floor is None:
        console.print("No robustness was asked for, so C = p·m·R': the client clip never acts.")
        return
    from precad.common.account.planning import VACUOUS  # noqa: PLC0415

    limit = VACUOUS * wanted.loss_bound
    vacuous = sum(setting.unclipped_worst_loss > limit for setting in made.settings)
    console.print(
        f"With K = {wanted.malicious} malicious, a loss of {wanted.loss:g} stays at or below "
        f"{wanted.tolerated_loss:g} only while noise/signal is at least "
        f"{made.floor.noise_to_signal:.3g} (K·√d/(n·Kμ)), whatever σ, q and T; "
        f"{wanted.noise_to_signal:g} needs at least {made.floor.clients:,} clients."
    )
    if vacuous:
        console.print(
            f"Privacy's noise alone, without a tighter client clip (C = p·m·R'), bounds nothing in "
            f"{vacuous} of {len(made.settings)} settings: its loss bound is above "
            f"{VACUOUS:g}·B there."
        )
    console.print("Loss bounds by the central limit theorem: for planning, not a certificate.")
