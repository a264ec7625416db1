"""`precad plan`: what σ gives an ε, or what ε a σ gives, and how many attackers it bounds."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli.options import AsJson, Wishes, print_json, with_options


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(Wishes):
    """What `precad plan` is asked."""

    task: Annotated[Path | None, "The task (TOML), instead of its numbers one by one."]
    dimension: Annotated[int | None, "d: parameters, in place of a model."]
    malicious: Annotated[
        int | None,
        "K: owners that may submit anything; without --client-clip C is chosen for them.",
    ]
    change: Annotated[
        Literal["replacements", "additions"],
        "What the K do: honest ones turn bad, or bad ones join.",
    ] = "replacements"
    loss: Annotated[float, "L: expected loss on one record without attackers."] = 0.2
    tolerated_loss: Annotated[float, "The loss that attackers may cause at most, above L."] = 0.5
    loss_bound: Annotated[float, "B: the largest value that the loss takes."] = 1.0
    as_json: AsJson


@click.command()
@with_options
def plan(request: PlanRequest) -> None:
    """Say what σ gives an ε, what ε a σ gives, and how many attackers that bounds.

    Everything is PLANNED: precad ledger and precad certify say what a run
    gave, precad simulate what a setting learns.

    PRIVACY: σ is the least for which a record has (ε, δ) against one curious
    server, exactly, over as many participations as all but one owner in 1,000
    will have.

    ROBUSTNESS: with K malicious owners the expected loss stays below
    B·Φ(Φ⁻¹(L/B) + 2Kμ) if they replace honest ones, with Kμ if they join; μ
    is the central limit theorem's. C is chosen by that. Beside it stands how
    many owners, and how many records, are certified exactly.

    With --records everything is as precad task new would write it, of the same
    words. With --task its numbers are taken, and --epsilon gives another σ for
    it. Without both all numbers are to be given.

    For example:

    \b
        precad plan --records 3x400 --epsilon 3 --architecture logistic \\
          --features 30 --classes 2
        precad plan --epsilon 3 --delta 1e-5 --record-rate 0.05 \\
          --client-rate 1 --rounds 200 --record-clip 1 --client-clip 10 \\
          --dimension 7850
        precad plan --epsilon 2 --delta 1e-5 --record-rate 0.1 \\
          --client-rate 0.1 --rounds 200 --record-clip 1 --malicious 1 \\
          --clients 1000 --dimension 7850
        precad plan --task task.toml --epsilon 2
    """  # noqa: D301 -- click reads the control character
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.cli.planning import Plan  # noqa: PLC0415

    made = Plan.of(request)
    if request.as_json:
        print_json(made.document(), indent=2)
    else:
        made.show()
