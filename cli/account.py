"""`precad account`: what a run costs in privacy, against whom, by three accountants."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from precad.cli.options import Json, TaskFile, print_json, task_numbers

if TYPE_CHECKING:
    from precad.common.account.guarantees import Adversary, PrivacyStatement

# e^20 is half a billion: no ratio of odds that large protects anybody.
_NO_PROTECTION = 20.0
_RECORD = ("record_rate", "client_rate", "noise_multiplier", "rounds", "delta")
# R, C, d and f: what R'/C takes.
_CLIENT = ("record_clip", "client_clip", "dimension", "fractional_bits")


def account(
    *,
    task: TaskFile = None,
    record_rate: Annotated[
        float | None, Option(help="p: probability of a record being drawn in a round, 0 to 1.")
    ] = None,
    client_rate: Annotated[
        float | None, Option(help="q: probability of a client being drawn in a round, 0 to 1.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, Option(help="σ: standard deviation of one server's noise over R'.")
    ] = None,
    rounds: Annotated[int | None, Option(help="T: rounds of the run.")] = None,
    delta: Annotated[float | None, Option(help="δ: above 0 and below 1, like 1e-5.")] = None,
    participations: Annotated[
        int | None,
        Option(
            help="T_i: how often the client took part, from its ledger. Without it this is a "
            "plan: the 0.999 quantile of Binomial(T, q)."
        ),
    ] = None,
    record_clip: Annotated[
        float | None, Option(help="R: bound on a record's gradient. Needs C, d and f too.")
    ] = None,
    client_clip: Annotated[
        float | None, Option(help="C: bound on a client's update. Needs R, d and f too.")
    ] = None,
    dimension: Annotated[
        int | None, Option(help="d: parameters of the model; R' is R + √d·2^−f.")
    ] = None,
    fractional_bits: Annotated[
        int | None, Option(help="f: fractional bits of the fixed point.")
    ] = None,
    sampling: Annotated[
        str, Option(help="How records and clients are drawn; this system runs poisson.")
    ] = "poisson",
    as_json: Json = False,
) -> None:
    """What a run costs in privacy, against whom, by three accountants.

    ONE SERVER: a record, against one curious server with any other
    clients. It sees who takes part and knows its own noise: rate p,
    multiplier σ, once per participation.

    CLIENTS ONLY: a record, against other clients, both servers honest.
    They see the models, with both noises on: √2·σ.

    CLIENT LEVEL: a whole client, against anyone who sees the models,
    both servers honest: rate q, √2·σ·R'/C. It needs R, C, d and f, and
    is what bounds the harm that malicious clients can do.

    EXACT is the guarantee. RDP is an upper bound found in another way,
    a cross-check. GDP-CLT is the PRECAD paper's formula, true in a limit
    only: it usually reports too small an ε.

    For example:

    \b
        precad account --task task.toml
        precad account --record-rate 0.2 --client-rate 1 \\
          --noise-multiplier 2 --rounds 60 --delta 1e-5
    """  # noqa: D301 -- click reads the control character
    given = locals()
    statements = _statements(given)
    if as_json:
        print_json({"guarantees": [s.to_json() for s in statements]}, indent=2)
    else:
        _show(statements, planned=participations is None)


def _statements(given: dict[str, Any]) -> "tuple[PrivacyStatement, ...]":
    """The guarantees of what all options, by name, say."""
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.common.account.events import require_poisson  # noqa: PLC0415
    from precad.common.account.guarantees import Run, guarantees, sensitivity_ratio  # noqa: PLC0415

    require_poisson(given["sampling"])
    # One number of the client level alone is of no use.
    wanted = any(given[name] is not None for name in _CLIENT)
    numbers = task_numbers(
        given, (*_RECORD, *_CLIENT) if wanted else _RECORD, () if wanted else _CLIENT
    )
    clips = {name: numbers.pop(name) for name in _CLIENT}
    if clips["client_clip"] is not None:
        numbers["sensitivity_ratio"] = sensitivity_ratio(**clips)
    delta = numbers.pop("delta")
    return guarantees(Run(**numbers, participations=given["participations"]), delta)


def _show(statements: "tuple[PrivacyStatement, ...]", *, planned: bool) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Column, Table  # noqa: PLC0415

    from precad.common.account.accountant import AccountantName  # noqa: PLC0415
    from precad.common.account.guarantees import Adversary  # noqa: PLC0415

    notes = {
        AccountantName.EXACT: "the guarantee",
        AccountantName.RDP: "upper bound, cross-check",
        AccountantName.GDP_CLT: "asymptotic, not a guarantee",
    }
    console = Console(highlight=False)
    console.print(f"Privacy at δ = {statements[0].delta:g}", style="bold")
    for adversary in Adversary:
        rows = [s for s in statements if s.adversary is adversary]
        if not rows:
            console.print(
                f"\n{adversary.value}: give --record-clip, --client-clip, "
                "--dimension and --fractional-bits, or --task, to see it."
            )
            continue
        first = rows[0]
        what = "a whole client" if adversary is Adversary.CLIENT_LEVEL else "one record"
        console.print(f"\n[bold]{adversary.value}[/]: {what}, against {adversary.words}")
        console.print(
            f"noise multiplier {first.noise_multiplier:.4g}, "
            f"{first.compositions} {_counted(adversary, planned=planned)}"
        )
        table = Table("accountant", Column("ε", justify="right"), Column("μ", justify="right"))
        table.add_column("what it is")
        for row in rows:
            exact = row.accountant is AccountantName.EXACT
            note = notes[row.accountant]
            if exact and row.epsilon > _NO_PROTECTION:
                note += ", too large to protect"
            mu = "" if row.mu is None else f"{row.mu:.4g}"
            cells = (row.accountant.value, f"{row.epsilon:.4g}", mu, note)
            table.add_row(*cells, style="bold" if exact else "dim")
        console.print(table)


def _counted(adversary: "Adversary", *, planned: bool) -> str:
    """What ``compositions`` counts, in words."""
    from precad.common.account.guarantees import PLANNING_QUANTILE, Adversary  # noqa: PLC0415

    match adversary, planned:
        case Adversary.ONE_SERVER, True:
            return f"participations ({PLANNING_QUANTILE} quantile of Binomial(T, q))"
        case Adversary.CLIENTS_ONLY, True:
            return "rounds, in each of which the client is drawn with probability q"
        case Adversary.CLIENT_LEVEL, _:
            return "rounds"
        case _:
            return "participations"
