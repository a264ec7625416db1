"""What the demo is asked: an option for each field, with its help."""

from pathlib import Path
from typing import Annotated, Literal

import click

from precad.cli.main import AsJson
from precad.common.frozen import frozen_kw_only_dataclass


@frozen_kw_only_dataclass
class DemoRequest:
    """What the demo is asked."""

    dataset: Annotated[
        str, "digits, breast-cancer, or mnist, with its files in --data."
    ] = "digits"
    data: Annotated[
        Path | None, "Folder with the data set's files; nothing is downloaded."
    ] = None
    model: Annotated[str, "logistic or mlp; with mnist also cnn."] = "logistic"
    clients: Annotated[int, "How many data owners.", click.IntRange(min=1)] = 10
    rounds: Annotated[
        int | None, "T; about 60 unless given.", click.IntRange(min=1)
    ] = None
    client_rate: Annotated[
        float, "q: an owner is drawn with it.", click.FloatRange(max=1)
    ] = 1.0
    attack: Annotated[
        str | None,
        "wraparound (huge, but its square wraps to 0), oversize (twice the bound), "
        "garbage (random vectors and broken uploads) or dropout (vanishes).",
    ] = None
    attackers: Annotated[int | None, "How many data owners attack; 1 unless given."] = (
        None
    )
    validation: Annotated[
        Literal["crypten", "proof"],
        "How norms are checked: crypten, with a dealer, or proof, by the owners' own"
        " proofs: two servers and no dealer, and a server that departs from the"
        " protocol learns no more.",
    ] = "crypten"
    objective: Annotated[
        str | None,
        "Of a record: dp-gaussian or another of docs/robustness.md. The model is then "
        "certified against changed inputs too.",
    ] = None
    seed: Annotated[int, "Of the partition; noise has none.", click.IntRange(min=0)] = 1
    output: Annotated[
        Path | None, "For model, plot, logs; precad-demo/<time> unless given."
    ] = None
    as_json: AsJson = False
