"""The task: one frozen description of what everybody takes part in, and its digest.

Every message carries the digest; peers whose digest differs are refused. All headroom rules of
the ring (soundness of validation, exactness of sums, discreteness of the noise) are checked
when a task is made, so that no round can meet them.
"""

import json
import math
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest

TAU = 7
"""Half-width of the range test in units of β: |z| ≤ τβ."""
MAX_BOUND = 2**25
"""Largest β for which whatever passes the range test has X·X < 2^62."""
MIN_NOISE_UNITS = 1024.0
"""Least noise standard deviation in units of the last place: below it the discrete Gaussian's
PLD may not be taken for the continuous one's."""
NOISE_DEVIATIONS = 10.0
"""Standard deviations of noise for which a round's sum must have room."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]


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
    """`uniform`: each tensor uniform in ±1/√fan-in, expanded from `initial_seed` (public)."""
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


class TrainingSection(_Section):
    """Optimisation."""

    learning_rate: Positive
    """η."""
    rounds: Annotated[int, Field(ge=1, le=1_000_000)]
    """T."""


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
    rejoin: Seconds = 5.0
    """A client whose connection ended longer ago isn't waited for."""
    outage: Seconds = 600.0
    """How long a server tries to get back to the other server and the dealer before it gives up."""
    peer: Seconds = 60.0
    """For one message of the other server or the dealer."""


class Task(_Section):
    """A training that data owners, two servers and a dealer agree on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    model: ModelSection
    privacy: PrivacySection
    training: TrainingSection
    enrolment: EnrolmentSection
    fractional_bits: Annotated[int, Field(ge=1, le=52)] = 20
    """f: an update's unit in the last place is 2^−f."""
    projections: Annotated[int, Field(ge=40, le=256)] = 40
    """k: rows of the range test; soundness error 2^−k a submission."""
    deadlines: DeadlineSection = DeadlineSection()

    @cached_property
    def dimension(self) -> int:
        """d: length of the model's vector."""
        return sum(parameter.size for parameter in self.model.parameters)

    @cached_property
    def bound(self) -> int:
        """β = floor(C·2^f): the client bound in units of the last place."""
        return math.floor(math.ldexp(self.privacy.client_clip, self.fractional_bits))

    @cached_property
    def effective_record_clip(self) -> float:
        """R' = R + √d·2^−f: the record's sensitivity with the rounding in it."""
        rounding = math.ldexp(math.sqrt(self.dimension), -self.fractional_bits)
        return self.privacy.record_clip + rounding

    @cached_property
    def noise_units(self) -> float:
        """Standard deviation of one server's noise in units of the last place: σ·R'·2^f."""
        scale = math.ldexp(self.effective_record_clip, self.fractional_bits)
        return self.privacy.noise_multiplier * scale

    @cached_property
    def client_noise_multiplier(self) -> float:
        """√2·σ·R'/C: both servers' noise over one client's bound (PRECAD Lemma 8)."""
        ratio = self.effective_record_clip / self.privacy.client_clip
        return math.sqrt(2) * self.privacy.noise_multiplier * ratio

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

    @model_validator(mode="after")
    def _headroom(self) -> Self:
        """The rules of soundness.md; each error says what would fit."""
        privacy, bits = self.privacy, self.fractional_bits
        if privacy.record_clip > privacy.client_clip:
            _refuse(
                "privacy.record_clip",
                privacy.record_clip,
                f"must be at most privacy.client_clip = {privacy.client_clip}",
            )
        if self.enrolment.min_clients > self.enrolment.clients:
            _refuse(
                "enrolment.min_clients",
                self.enrolment.min_clients,
                f"must be at most enrolment.clients = {self.enrolment.clients}",
            )
        if self.bound < 1:
            least = math.ceil(-math.log2(privacy.client_clip))
            _refuse("fractional_bits", bits, f"β = floor(C·2^f) must be at least 1; use {least}")
        if self.bound > MAX_BOUND:
            most = math.floor(math.log2(MAX_BOUND / privacy.client_clip))
            _refuse(
                "fractional_bits",
                bits,
                f"β = floor(C·2^f) = {self.bound} must be at most 2^25 = {MAX_BOUND}; "
                + (f"use at most {most}" if most >= 1 else "lower privacy.client_clip below 2^24"),
            )
        if 2 * TAU * self.bound * self.dimension >= 2**63:
            most_d = (2**63 - 1) // (2 * TAU * self.bound)
            _refuse(
                "model.parameters",
                f"d = {self.dimension}",
                f"2τβd must be below 2^63; with β = {self.bound} at most d = {most_d} fits: "
                "use fewer fractional_bits or a smaller model",
            )
        if self.noise_units < MIN_NOISE_UNITS:
            more = math.ceil(math.log2(MIN_NOISE_UNITS / self.noise_units))
            _refuse(
                "fractional_bits",
                bits,
                f"the noise's standard deviation is {self.noise_units:.4g} units of the last "
                f"place and must be at least 1024; use at least {bits + more}, "
                "or a larger privacy.noise_multiplier",
            )
        noise_room = NOISE_DEVIATIONS * 2 * self.noise_units
        room = 2**62 - noise_room
        if self.enrolment.clients * self.bound >= room:
            _refuse(
                "enrolment.clients",
                self.enrolment.clients,
                f"n·β + 10 standard deviations of both servers' noise must be below 2^62; "
                f"with β = {self.bound} at most {max(0, math.floor(room / self.bound))} fit",
            )
        return self

    @classmethod
    def parse(cls, data: dict[str, object]) -> Self:
        """A task from plain values.

        Raises:
            Misconfiguration: names the field, the value and what would fit.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise _explain(error) from None

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """A task from TOML text; unknown keys are refused. Raises Misconfiguration."""
        try:
            return cls.parse(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise Misconfiguration("task", "TOML", f"can't be read: {error}") from None

    @classmethod
    def load(cls, path: Path) -> Self:
        """A task from a TOML file. Raises Misconfiguration."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfiguration("task", str(path), f"can't be read: {error}") from None
        return cls.from_toml(text)

    @classmethod
    def from_canonical(cls, data: bytes) -> Self:
        """Inverse of ``canonical``. Raises Misconfiguration."""
        try:
            return cls.parse(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise Misconfiguration("task", "JSON", f"can't be read: {error}") from None


class _HeadroomError(ValueError):
    def __init__(self, refusal: Misconfiguration) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def _refuse(field: str, value: object, remedy: str) -> None:
    raise _HeadroomError(Misconfiguration(field, value, remedy))


def _explain(error: ValidationError) -> Misconfiguration:
    """The first of pydantic's findings, in this project's form."""
    first = error.errors(include_url=False)[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, _HeadroomError):
        return inner.refusal
    field = ".".join(str(part) for part in first["loc"]) or "task"
    if first["type"] == "extra_forbidden":
        return Misconfiguration(field, first["input"], "unknown key; remove it or mend its name")
    if first["type"] == "missing":
        return Misconfiguration(field, None, "is required")
    return Misconfiguration(field, first["input"], first["msg"])
