"""What `precad certify` is asked: one frozen request a command, whose fields are its options."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

GuaranteeKind: TypeAlias = Literal["exact", "rdp", "adp", "gdp"]
"""Which guarantee of the training is used."""
Change: TypeAlias = Literal["either", "additions", "deletions", "replacements"]
VoteFormat: TypeAlias = Literal["votes", "labels", "scores"]
# The values of the certifier's own enums, whose modules load too slowly for the help.
UnitName: TypeAlias = Literal["client", "record", "record-of-one-client"]
BoundName: TypeAlias = Literal["hoeffding", "bernstein"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The majority vote of independently trained private models."""

    sources: tuple[Path, ...]
    runs: bool
    guarantee: GuaranteeKind
    also: tuple[GuaranteeKind, ...]
    sampling_rate: float | None
    noise_multiplier: float | None
    rounds: int | None
    sampling: str | None
    unit: UnitName | None
    change: Change | None
    absent: int
    confidence: float
    simultaneous: bool
    strict: bool
    form: VoteFormat | None
    interval: BoundName
    classes: int | None
    models: int | None
    labels: Path | None
    delta: float | None
    soundness_bits: int | None
    attempts: int
    plot: Path | None
    as_json: bool

    @property
    def kinds(self) -> list[GuaranteeKind]:
        """Each guarantee asked for, once; the first one's certificates are the answer."""
        return list(dict.fromkeys([self.guarantee, *self.also]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The expected loss of a private model after so many attackers."""

    sources: tuple[Path, ...]
    runs: bool
    expected: float | None
    bound: float
    attackers: int
    tau: tuple[float, ...]
    guarantee: GuaranteeKind
    sampling_rate: float | None
    noise_multiplier: float | None
    rounds: int | None
    sampling: str | None
    unit: UnitName | None
    change: Change | None
    absent: int
    confidence: float
    interval: BoundName
    delta: float | None
    soundness_bits: int | None
    attempts: int
    plot: Path | None
    as_json: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """Predictions under changed inputs."""

    votes: Path | None
    sigma: float | None
    data: Path | None
    config: Path | None
    task: Path | None
    model_file: Path | None
    model: str | None
    copies: int
    select: int
    first: int | None
    draw: int | None
    keep: Path | None
    confidence: float
    selection: Path | None
    simultaneous: bool
    labels: Path | None
    plot: Path | None
    as_json: bool


Request: TypeAlias = Prediction | Loss | Smoothing
