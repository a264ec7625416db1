"""What `precad task new` asks on a terminal, for whatever its options leave open."""

import sys
from pathlib import Path
from typing import Any, Literal

import click

from precad.common.errors import Misconfiguration

_QUESTIONS = {
    "records": "Records of each owner, like 3x600 or 500,1200,300",
    "epsilon": "ε of a record against one curious server, all rounds together (3 is usual)",
}


def recipe() -> Path | None:
    """The file that says how tables become numbers; None for arrays, or without a terminal."""
    if not _terminal():
        return None
    answer = click.prompt(
        "File that says how the owners' tables become numbers (docs/own-data.md); none for arrays",
        default="none",
    )
    return None if answer == "none" else Path(answer)


Architecture = Literal["logistic", "mlp"]


def model() -> tuple[Architecture | None, str | None]:
    """Architecture, or a model of one's own; neither without a terminal."""
    if not _terminal():
        return None, None
    answer: str = click.prompt(
        "Model: logistic, mlp, or your own as MODULE:NAME", default="logistic"
    )
    match answer:
        case "logistic" | "mlp":
            return answer, None
    return None, answer


def sizes(features: int | None, classes: int | None) -> tuple[int | None, int | None]:
    """Numbers in an input, and labels."""
    if _terminal():
        if features is None:
            features = click.prompt("Numbers in one record's input", type=int)
        if classes is None:
            classes = click.prompt("Labels", type=int)
    return features, classes


def needed(field: str, value: Any) -> Any:
    """What an option gives, or the answer. Raises Misconfiguration: neither is there."""
    if value is not None:
        return value
    if not _terminal():
        raise Misconfiguration(field, None, f"give --{field}")
    return click.prompt(_QUESTIONS[field], type=float if field == "epsilon" else str)


def _terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()
