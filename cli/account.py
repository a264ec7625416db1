"""`precad account`: what one run or several cost in privacy, against whom, by three accountants."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from precad.cli.options import PATH, json_option, print_json


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRequest:
    """What `precad account` is asked; the fields are its options."""

    task: tuple[Path, ...]
    run: tuple[Path, ...]
    record_rate: float | None
    client_rate: float | None
    noise_multiplier: float | None
    rounds: int | None
    delta: float | None
    participations: tuple[int, ...]
    again: tuple[str, ...]
    cap: int | None
    record_clip: float | None
    client_clip: float | None
    dimension: int | None
    fractional_bits: int | None
    cover_uploads: bool
    sampling: str
    as_json: bool


@click.command()
@click.option(
    "--task",
    type=PATH,
    multiple=True,
    help="The task (TOML), instead of its numbers; repeat it for all of an owner's.",
)
@click.option(
    "--run",
    type=PATH,
    multiple=True,
    help="Folder of a finished run, counted as drawn in every round; may be repeated.",
)
@click.option(
    "--record-rate", type=float, help="p: probability of a record being drawn in a round, 0 to 1."
)
@click.option(
    "--client-rate", type=float, help="q: probability of a client being drawn in a round, 0 to 1."
)
@click.option(
    "--noise-multiplier", type=float, help="σ: standard deviation of one server's noise over R'."
)
@click.option("--rounds", type=int, help="T: rounds of the run.")
@click.option("--delta", type=float, help="δ: above 0 and below 1, like 1e-5.")
@click.option(
    "--participations",
    type=int,
    multiple=True,
    help="T_i: how often the client took part, from its ledger; once for each task, in "
    "order. Without it this is a plan: the 0.999 quantile of Binomial(T, q).",
)
@click.option(
    "--again",
    multiple=True,
    help="Of those participations, versions that were released more than once, as the "
    "ledger has it: M:COUNT, COUNT versions of 1 + M releases; 1:3,2:1 for several M. "
    "Once for each task, in order; none for none.",
)
@click.option(
    "--cap",
    type=int,
    help="Most participations, fixed beforehand; by default the task's limit, or T.",
)
@click.option(
    "--record-clip", type=float, help="R: bound on a record's gradient. Needs C, d and f too."
)
@click.option(
    "--client-clip", type=float, help="C: bound on a client's update. Needs R, d and f too."
)
@click.option(
    "--dimension", type=int, help="d: parameters of the model; R' is R + √d·2^−f + C·2^−18."
)
@click.option("--fractional-bits", type=int, help="f: fractional bits of the fixed point.")
@click.option(
    "--cover-uploads", is_flag=True, help="Undrawn clients upload too: nobody sees the coin."
)
@click.option(
    "--sampling",
    default="poisson",
    help="How records and clients are drawn; this system runs poisson.",
)
@json_option
def account(**given: Any) -> None:
    """What a run costs in privacy, against whom, by three accountants.

    ONE SERVER: a record, against one curious server with any other
    clients. It sees who takes part and knows its own noise: rate p,
    multiplier σ, once per participation.

    CLIENTS ONLY: a record, against other clients, both servers honest.
    They see the models, with both noises on: √2·σ.

    CLIENT LEVEL: a whole client, against anyone who sees the models,
    both servers honest: with probability q a whole step of √2·σ·R'/C,
    or rate q where uploads are covered. It needs R, C, d and f.

    Neighbours differ in one record whose gradient is zero, or in one
    client whose update is.

    EXACT is the guarantee. RDP is an upper bound found in another way,
    a cross-check. GDP-CLT is the PRECAD paper's formula, true in a limit
    only: it usually reports too small an ε.

    A version of which a release was lost and made again is one step
    with σ/√(1+m), not m more: --again takes them as precad ledger shows
    them.

    Several tasks or runs are those of one owner on the same records:
    each is shown (of more than twelve none), and what all cost together.

    For example:

    \b
        precad account --task task.toml
        precad account --task spring.toml --task autumn.toml \\
          --participations 40 --participations 55
        precad account --task task.toml --participations 40 --again 1:3
        precad account --record-rate 0.2 --client-rate 1 \\
          --noise-multiplier 2 --rounds 60 --delta 1e-5
    """  # noqa: D301 -- click reads the control character
    request = AccountRequest(**given)
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.cli.account_runs import runs_of  # noqa: PLC0415
    from precad.cli.account_tables import document, show  # noqa: PLC0415

    runs = runs_of(request)
    if request.as_json:
        print_json(document(runs), indent=2)
    else:
        show(runs)
