"""One frozen description of what everybody takes part in, and its digest.

Every message carries the digest; peers whose digest differs are refused. Whether the numbers fit
together is `precad.common.task`'s: the dealer, which uses few of them, loads this alone.
"""

import json
import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from precad.common.identifiers import Digest
from precad.common.parsed import read_toml, refusal

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
MAX_FRACTIONAL_BITS = 52
_REMEDIES = {"extra_forbidden": "unknown key; remove it or mend its name", "missing": "is required"}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Parameter(_Section):
    """One tensor of the model, as `named_parameters()` names it."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    shape: Annotated[tuple[Count, ...], Field(strict=False, max_length=8)]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class ModelSection(_Section):
    """The model's parameters and where training starts."""

    architecture: Annotated[str, Field(min_length=1, max_length=100)] = "custom"
    """`logistic`, `mlp`, or any name that the data owners agree on."""
    parameters: Annotated[
        tuple[Parameter, ...], Field(strict=False, min_length=1, max_length=10_000)
    ]
    initial: Literal["zeros", "uniform"] = "zeros"
    """`uniform`: matrices uniform in ±1/√fan-in, expanded from the public `initial_seed`;
    vectors 1 where their name ends in weight (scales), else 0 (biases)."""
    initial_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PrivacySection(_Section):
    """Clips, noise and sampling; symbols as in PRECAD Table 2."""

    record_clip: Positive
    """R: largest L2 norm of one record's gradient."""
    client_clip: Positive
    """C: largest L2 norm of one client's update."""
    noise_multiplier: Positive
    """σ: each server's noise standard deviation over R'."""
    record_rate: Rate
    """p: largest Poisson sampling rate of records that a client may enrol with."""
    client_rate: Rate
    """q: Poisson sampling rate of clients."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """δ of every (ε, δ) statement."""
    epsilon_limit: Positive | None = None
    """Servers let no client's record-level exact ε (one server corrupted) pass this."""
    cover_uploads: bool = False
    """Whether clients that aren't drawn upload zeros at the same time: hides the coin."""


class TrainingSection(_Section):
    """Optimisation."""

    learning_rate: Positive
    """η."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    """T."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 20
    """Most tries to get from one version to the next before the operators are asked."""


class EnrolmentSection(_Section):
    """Who may enrol; frozen before round 0."""

    clients: Annotated[int, Field(ge=1, le=100_000)]
    """n: most clients. The task starts when all have enrolled, or at the deadline."""
    min_clients: Annotated[int, Field(ge=1, le=100_000)] = 1
    """Least number of enrolled clients to start with."""
    max_expected_records: Positive
    """Cap of p_i·|D_i| per client: an inflated claim would stall training."""


class DeadlineSection(_Section):
    """How long each wait may take, in seconds."""

    enrol: Seconds = 120.0
    collect: Seconds = 60.0
    """From the announcement of a round until it closes."""
    work: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.5
    """From the announcement until uploads begin: above the time of the padded work."""
    rejoin: Seconds = 5.0
    """A client whose connection ended longer ago isn't waited for."""
    outage: Seconds = 600.0
    """How long a server tries to get back to the other server and the dealer before it gives up."""
    peer: Seconds = 60.0
    """For one message of the other server or the dealer."""


class Description(_Section):
    """A training that data owners, two servers and a dealer agree on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    model: ModelSection
    privacy: PrivacySection
    training: TrainingSection
    enrolment: EnrolmentSection
    fractional_bits: Annotated[int, Field(ge=1, le=MAX_FRACTIONAL_BITS)] = 20
    """f: an update's unit in the last place is 2^−f."""
    projections: Annotated[int, Field(ge=40, le=256)] = 40
    """k: rows of the range test; soundness error 2^−k a submission."""
    deadlines: DeadlineSection = DeadlineSection()

    @cached_property
    def dimension(self) -> int:
        """d: length of the model's vector."""
        return sum(parameter.size for parameter in self.model.parameters)

    @cached_property
    def canonical(self) -> bytes:
        """The bytes that the digest is of: JSON with sorted keys and shortest floats."""
        return json.dumps(
            self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
        ).encode()

    @cached_property
    def digest(self) -> Digest:
        """SHA-256 of the canonical form; in every message."""
        return Digest.of(b"precad/v1/task\0" + self.canonical)

    @classmethod
    def parse(cls, data: dict[str, object]) -> Self:
        """From plain values. Raises Misconfiguration: the field, the value and what would fit."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise refusal(error, _REMEDIES) from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """From a TOML file; unknown keys are refused. Raises Misconfiguration."""
        return cls.parse(read_toml("task", path))
