"""Inputs of certificates from the folders of finished runs: what the ledger charged.

Votes need many independent runs of one task; M of them cost M-fold privacy, which is
computed here.
"""

import math
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    Field,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from precad.accounting import (
    EXACT,
    MOST_ROUNDS,
    Adversary,
    PrivacyStatement,
    Run,
    SampledGaussian,
    of_worst_owners,
)
from precad.accounting.guarantees import guarantees
from precad.certify import probabilities, votes_of
from precad.common import (
    Array,
    Count,
    Floats,
    Integers,
    Misconfiguration,
    Positive,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    read_npy,
)
from precad.common import Unit as Protected
from precad.common.checks import refusal

Share = Annotated[float, Field(ge=0, le=1)]
"""A probability."""
Bound = Annotated[float, Field(gt=0, le=1)]
"""A part of C."""


class Unit(Enum):
    """What k counts."""

    CLIENT = "client"
    """Whole clients, each anything within the client clip."""
    RECORD = "record"
    """Records of any clients. Every client counts as drawn in every round, since k
    records may be spread so that one of their owners nearly always is."""
    RECORD_OF_ONE_CLIENT = "record-of-one-client"
    """Records of one client, in play only in the rounds in which that client is drawn.
    """

    def plural(self, protects: Protected) -> str:
        """Return what a radius counts, in the plural, where a task ``protects`` that."""
        return "clients" if self is Unit.CLIENT else protects.plural


class CertificateInputs(
    BaseModel, frozen=True, strict=True, use_attribute_docstrings=True
):
    """What a run enforced and charged (``certificate_inputs`` of its summary.json)."""

    task_digest: str = Field(min_length=1)
    """Hex SHA-256 of the task."""
    noise_multiplier: Positive
    """σ of each server."""
    record_clip: Positive
    """R."""
    effective_record_clip: Positive
    """R' = R + √d·2^−f + C·2^−18."""
    client_clip: Positive
    """C."""
    client_rate: Share
    """q."""
    record_rate: Share
    """p, the largest over clients."""
    rounds: int = Field(ge=0, le=MOST_ROUNDS)
    """T, rounds charged."""
    delta: float = Field(gt=0, lt=1)
    """δ of the task."""
    clients: Count
    """Enrolled."""
    protects: str = Protected.RECORD
    """The task's unit, such as patient; a record unless a run says it."""
    planned_units: Count | None = None
    """N, which makes the denominator; null where owners' claims do."""
    owners_per_unit: Count = 1
    """At how many owners a unit was declared to be at most."""
    malicious_submission_soundness_bits: Count
    """k, of the range test."""
    cover_uploads: bool = False
    """Undrawn clients uploaded too: nobody saw the coin."""
    attempts: int | None = None
    """Attempts of all versions together, at most; where a run doesn't say, every
    version is taken to have had as many as a task allows."""
    most_repeats: NonNegativeInt = 0
    """m, the most further releases that any version had with the same updates; all
    rounds are taken to have had as many, each with σ/√(1+m)."""
    redrawn_coins: NonNegativeInt = 0
    """Of versions' coins that operators had drawn again, at most."""
    proof_points: int | None = Field(default=None, ge=4)
    """N of the proofs, where clients proved their norms."""
    owner_bounds: list[Bound] = []
    """C_i/C of each owner; empty in runs of older versions: then each has C."""
    owner_records: list[Count] = []
    """The records that each owner holds, in the same order."""
    validation: Literal["crypten", "proof", "fss"] = "crypten"
    """How norms were checked; fss in runs of older versions."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Check that the fields fit each other. Raises Misconfiguration."""
        if (self.validation == "proof") != (self.proof_points is not None):
            raise Misconfiguration(
                "proof_points",
                self.proof_points,
                'N, where validation = "proof", and there alone',
            )
        if len(self.owner_bounds) != len(self.owner_records):
            owners = len(self.owner_records)
            raise Misconfiguration(
                "owner_bounds",
                len(self.owner_bounds),
                f"give one for each owner of owner_records, {owners}",
            )
        if self.attempts is not None and self.attempts < self.rounds:
            raise Misconfiguration(
                "attempts", self.attempts, "every round had at least one"
            )
        whole = self.protects == Protected.OWNER  # then R' is β·2^−f, below R
        if self.effective_record_clip < self.record_clip and not whole:
            raise Misconfiguration(
                "effective_record_clip",
                self.effective_record_clip,
                "R' includes R: at least record_clip",
            )
        return self

    def run(self, rounds: int, participations: int | None = None) -> Run:
        """Describe so many ``rounds`` of what was enforced, for the accountants.

        ``participations`` is in how many of them a client took part; None where that
        isn't known.
        """
        return Run(
            unit=Protected(self.protects),
            record_rate=self.record_rate,
            client_rate=self.client_rate,
            noise_multiplier=self.noise_multiplier / math.sqrt(1 + self.most_repeats),
            owners_per_unit=self.owners_per_unit,
            rounds=rounds,
            participations=participations,
            sensitivity_ratio=self.effective_record_clip / self.client_clip,
            owner_bounds=tuple(self.owner_bounds),
            least_owner_bound=min(self.owner_bounds, default=1.0),
            cover_uploads=self.cover_uploads,
            # N is a power of two with the least 2N + 2c_w, so that d ≤ N·c_w < 3N².
            dimension=3 * (self.proof_points or 0) ** 2,
            # Under fss the range test was another one, and keys were dealt: nothing
            # here counts what these add to δ against a server that cheats.
            malicious_server=self.validation == "proof",
        )

    def worst_owners(self, share: float) -> SampledGaussian:
        """Return the mechanism of owners with a ``share``, as ``of_worst_owners``."""
        of_any = replace(self.run(self.rounds), owner_bounds=())
        return of_worst_owners(
            of_any.event(Adversary.CLIENT_LEVEL),
            self.owner_bounds,
            self.owner_records,
            share,
        )

    @property
    def most_attempts(self) -> int:
        """Return how often one client may have submitted, at most."""
        return self.rounds * _MOST_ATTEMPTS if self.attempts is None else self.attempts

    def mechanism(self, unit: Unit) -> SampledGaussian:
        """Return the mechanism that bounds robustness against k of one ``unit``.

        Both servers are honest, so it has √2·σ of noise.
        """
        if unit is Unit.CLIENT:
            return self.run(self.rounds).event(Adversary.CLIENT_LEVEL)
        participations = self.rounds if unit is Unit.RECORD else None
        return self.run(self.rounds, participations).event(Adversary.CLIENTS_ONLY)


class _Summary(BaseModel):
    """What certificates take from a run's summary.json."""

    certificate_inputs: CertificateInputs


_SIZES = {"owner_bounds", "owner_records"}
"""Fields that may differ from run to run: data are dealt anew for each."""
_MOST_ATTEMPTS = 1000
"""Attempts of one version: the most that a task allows."""


@frozen_kw_only_dataclass
class FinishedRun:
    """What the folder of one finished run holds."""

    folder: Path
    inputs: CertificateInputs
    predictions: Array | None
    """[points], the labels that were predicted on the public test set."""
    losses: Array | None
    """[points], the losses on the public test set."""

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Read a run's folder.

        Raises Misconfiguration: it isn't that of a finished run, or a file is
        malformed.
        """
        path = folder / "summary.json"
        try:
            summary = _Summary.model_validate_json(path.read_bytes())
        except OSError as error:
            raise Misconfiguration(
                "runs",
                folder,
                "give folders of finished runs; this has no summary.json"
                f" ({error.strerror})",
            ) from None
        except ValidationError as error:
            remedies = {
                "json_invalid": f"{path} isn't JSON",
                "missing": f"{path} lacks it; use a newer run",
                "model_type": f"{path} has another form; use a newer run",
            }
            raise refusal(error, remedies) from None
        return cls(
            folder=folder,
            inputs=summary.certificate_inputs,
            predictions=_array(folder / "predictions.npy"),
            losses=_array(folder / "losses.npy"),
        )


def _array(path: Path) -> Array | None:
    """Read a file of one value a test point, [points]; None where there is no file.

    Raises Misconfiguration: the file is malformed, or has another shape.
    """
    if not path.exists():
        return None
    array = read_npy("runs", path)
    if array.ndim != 1 or not array.size:
        raise Misconfiguration(
            "runs", path, f"give one value a test point, not {array.shape}"
        )
    return array


@frozen_dataclass
class Ensemble:
    """M ≥ 1 independent runs of one task.

    They are alike in all certificate inputs but redrawn coins. Raises Misconfiguration:
    there is no run, one is given twice, or two differ.
    """

    runs: tuple[FinishedRun, ...]
    """M of them, from different folders."""

    def __post_init__(self) -> None:
        """Check that the runs differ and are of one task, for whoever counts votes."""
        if not self.runs:
            raise Misconfiguration(
                "runs", "none", "give at least one folder of a finished run"
            )
        first = self.runs[0]
        shared = first.inputs.model_dump(exclude={"redrawn_coins", *_SIZES})
        folders = [run.folder.resolve() for run in self.runs]
        for number, run in enumerate(self.runs):
            if folders[number] in folders[:number]:
                raise Misconfiguration(
                    "runs", run.folder, "a run votes once; give it once"
                )
            differing = ", ".join(
                field
                for field, value in shared.items()
                if getattr(run.inputs, field) != value
            )
            if differing:
                raise Misconfiguration(
                    "runs",
                    run.folder,
                    f"differs from {first.folder} in {differing}; use runs of one task",
                )

    @property
    def inputs(self) -> CertificateInputs:
        """Return what every run enforced and charged.

        Of redrawn coins, the most that any run had. Owners' sizes are left out where
        they differ from run to run, and then each counts with C.
        """
        every = [run.inputs for run in self.runs]
        most = max(inputs.redrawn_coins for inputs in every)
        update: dict[str, object] = {"redrawn_coins": most}
        sizes = {inputs.model_dump_json(include=_SIZES) for inputs in every}
        if len(sizes) > 1:
            update |= {"owner_bounds": [], "owner_records": []}
        return every[0].model_copy(update=update)

    def votes(self, classes: int | None = None) -> Integers:
        """Count the runs' votes, [points, classes] int64, one vote a run.

        Raises Misconfiguration: one run alone, a run without predictions, or not all of
        one test set.
        """
        if len(self.runs) == 1:
            raise Misconfiguration(
                "runs",
                1,
                "one run gives no votes; give many independent runs, or use `certify"
                " loss`",
            )
        predictions = self._of_each("predictions")
        if len({len(of_run) for of_run in predictions}) > 1:
            raise Misconfiguration(
                "predictions", "of different lengths", "use one public test set"
            )
        return votes_of(np.stack(predictions, axis=1), classes)

    def mean_losses(self) -> Floats:
        """Return each run's mean loss, [runs] float64.

        Raises Misconfiguration: a run has no losses, or one lies outside [0, 1].
        """
        of_runs = zip(self.runs, self._of_each("losses"), strict=True)
        return np.asarray(
            [
                probabilities(f"losses of {run.folder}", losses).mean()
                for run, losses in of_runs
            ]
        )

    def _of_each(self, name: Literal["predictions", "losses"]) -> list[Array]:
        """Return one array of each run.

        Raises Misconfiguration: a run has no such file.
        """
        for run in self.runs:
            if getattr(run, name) is None:
                raise Misconfiguration("runs", run.folder, f"has no {name}.npy")
        return [getattr(run, name) for run in self.runs]

    def privacy_cost(self) -> tuple[PrivacyStatement, ...]:
        """Return the exact guarantees of publishing the models of all M runs.

        They are over M·T rounds. A record's guarantee against one server counts every
        round as a participation, the most it can be.
        """
        inputs = self.inputs
        rounds = len(self.runs) * inputs.rounds
        run = replace(
            inputs.run(rounds),
            attempts=len(self.runs) * inputs.most_attempts,
            projections=inputs.malicious_submission_soundness_bits,
        )
        one_server, *others = Adversary
        at_cap = run.at_cap(rounds)
        against_one_server = guarantees(at_cap, inputs.delta, (one_server,), EXACT)
        return against_one_server + guarantees(run, inputs.delta, others, EXACT)
