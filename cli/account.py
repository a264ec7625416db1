"""`precad account`: what one run or several cost in privacy, against whom, by three accountants."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from precad.cli.options import AsJson, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRequest:
    """What `precad account` is asked."""

    task: Annotated[
        tuple[Path, ...],
        "The task (TOML), instead of its numbers; repeat it for all of an owner's.",
    ]
    record_rate: Annotated[
        float | None, "p: probability of a record being drawn in a round, 0 to 1."
    ]
    client_rate: Annotated[
        float | None, "q: probability of a client being drawn in a round, 0 to 1."
    ]
    noise_multiplier: Annotated[
        float | None, "σ: standard deviation of one server's noise over R'."
    ]
    rounds: Annotated[int | None, "T: rounds of the run."]
    delta: Annotated[float | None, "δ: above 0 and below 1, like 1e-5."]
    participations: Annotated[
        tuple[int, ...],
        "T_i: how often the client took part, from its ledger; once for each task, in "
        "order. Without it this is a plan: the 0.999 quantile of Binomial(T, q).",
    ]
    again: Annotated[
        tuple[str, ...],
        "Of those participations, versions that were released more than once, as the "
        "ledger has it: M:COUNT, COUNT versions of 1 + M releases; 1:3,2:1 for several M. "
        "Once for each task, in order; none for none.",
    ]
    cap: Annotated[
        int | None, "Most participations, fixed beforehand; by default the task's limit, or T."
    ]
    record_clip: Annotated[float | None, "R: bound on a record's gradient. Needs C, d and f too."]
    client_clip: Annotated[float | None, "C: bound on a client's update. Needs R, d and f too."]
    dimension: Annotated[int | None, "d: parameters of the model; R' is R + √d·2^−f + C·2^−18."]
    fractional_bits: Annotated[int | None, "f: fractional bits of the fixed point."]
    cover_uploads: Annotated[bool, "Undrawn clients upload too: nobody sees the coin."]
    sampling: Annotated[str, "How records and clients are drawn; this system runs poisson."] = (
        "poisson"
    )
    as_json: AsJson


@click.command()
@with_options
def account(request: AccountRequest) -> None:
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

    Several tasks are those of one owner on the same records:
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
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.cli.account_answer import answer  # noqa: PLC0415

    answer(request)
