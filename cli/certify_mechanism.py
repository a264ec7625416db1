"""How the models were trained, told by options or by finished runs, and what that promises."""

from dataclasses import asdict, dataclass
from typing import Any

from precad.accounting.events import (
    SampledGaussian,
    poisson_gaussian,
    require_poisson,
    require_rounds,
)
from precad.accounting.gdp import GdpCltAccountant
from precad.certify.closed_form import GaussianDP
from precad.certify.exact_groups import ExactGroups
from precad.certify.finished_runs import Ensemble, FinishedRun, Unit
from precad.certify.guarantee import (
    BOTH,
    Direction,
    Guarantee,
    Redrawn,
    Replacements,
    ValidationAllowance,
    WithAbsent,
)
from precad.certify.renyi import RenyiGroups
from precad.cli.certify import Change, GuaranteeKind, Loss, Prediction
from precad.common import checks
from precad.common.errors import Misconfiguration

_LEAST_NOISE = 0.01
DIRECTIONS = {
    "either": BOTH,
    "additions": (Direction.ADDITIONS,),
    "deletions": (Direction.DELETIONS,),
    "replacements": (Direction.DELETIONS,),
}
"""What to certify against, by the name of the change; replacements are both in any direction."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The mechanism that is certified.

    Attributes:
        runs: finished runs; None where options say how the models were trained.
        unit: what is counted.
        mechanism: what was run, as one unit meets it.
        soundness_bits: of validation; None where submissions can't be forged or aren't validated.
        attempts: how often one client may have submitted in all.
        redraws: coins that were drawn again; nothing where the rate of clients doesn't matter.
    """

    runs: Ensemble | None
    unit: Unit
    mechanism: SampledGaussian
    soundness_bits: int | None
    attempts: int
    redraws: int = 0

    def change(self, request: Prediction | Loss) -> Change:
        """What is certified against: a client that turns bad replaces its update."""
        if request.change is not None:
            return request.change
        return "replacements" if self.unit is Unit.CLIENT else "either"

    @classmethod
    def of(cls, request: Prediction | Loss) -> "Trained":
        """From the runs' ledgers, or from the options, never from both.

        Raises:
            Misconfiguration: an option beside runs, an option missing without runs.
        """
        rate, noise, rounds = request.sampling_rate, request.noise_multiplier, request.rounds
        typed = {"--sampling-rate": rate, "--noise-multiplier": noise, "--rounds": rounds}
        bits = request.soundness_bits
        if request.runs:
            if not request.sources:
                raise Misconfiguration("runs", "none", "name the folders of finished runs")
            for name, value in (
                typed | {"--sampling": request.sampling, "--soundness-bits": bits}
            ).items():
                if value is not None:
                    raise Misconfiguration(
                        name, value, "leave it out: with --runs it comes from the runs' own ledgers"
                    )
            runs = Ensemble(tuple(FinishedRun.read(folder) for folder in request.sources))
            unit = Unit(request.unit or Unit.CLIENT)
            if unit is Unit.CLIENT:
                bits = runs.inputs.malicious_submission_soundness_bits
            inputs = runs.inputs
            _require_absences(request.absent, unit)
            redraws = 0 if unit is Unit.RECORD else inputs.redrawn_coins
            return cls(runs, unit, inputs.mechanism(unit), bits, inputs.most_attempts, redraws)
        if rate is None or noise is None or rounds is None:
            name = next(name for name, value in typed.items() if value is None)
            raise Misconfiguration(name, None, "say how the models were trained, or give --runs")
        unit = Unit(request.unit or Unit.RECORD)
        if unit is Unit.RECORD_OF_ONE_CLIENT:
            raise Misconfiguration(
                "--unit",
                unit.value,
                "only with --runs; without, give the rate and say record or client",
            )
        require_poisson(request.sampling or "poisson")
        checks.rate("sampling_rate", rate)
        require_rounds("rounds", rounds)
        if checks.noise_multiplier(noise) < _LEAST_NOISE:
            raise Misconfiguration(
                "noise_multiplier", noise, f"bounds nothing; give {_LEAST_NOISE:g} or more"
            )
        mechanism = poisson_gaussian(rate=rate, noise_multiplier=noise, count=rounds)
        attempts = rounds * checks.count("attempts", request.attempts, 1)
        _require_absences(request.absent, unit)
        return cls(None, unit, mechanism, bits, attempts)

    def guarantee(self, kind: GuaranteeKind, request: Prediction | Loss) -> Guarantee:
        """The named guarantee, with validation's allowance where submissions are validated."""
        m = self.mechanism
        guarantee: Guarantee
        match kind:
            case "exact":
                guarantee = ExactGroups(m)
            case "rdp":
                guarantee = RenyiGroups(m)
            case "adp":
                guarantee = ExactGroups(m).as_approximate(request.delta)
            case "gdp":
                limit = GdpCltAccountant()
                limit.compose(m)
                guarantee = GaussianDP(limit.mu, asymptotic=True)
        if self.soundness_bits is not None:
            guarantee = ValidationAllowance(guarantee, self.attempts, self.soundness_bits)
        if self.change(request) == "replacements":
            guarantee = Replacements(guarantee)
        if request.absent:
            guarantee = WithAbsent(guarantee, request.absent)
        return Redrawn(guarantee, self.redraws) if self.redraws else guarantee

    def document(self, request: Prediction | Loss, guarantee: Guarantee) -> dict[str, Any]:
        """This part of an answer; ``runs`` with what all of them together cost in privacy."""
        m, runs = self.mechanism, self.runs
        return {
            "guarantee": request.guarantee,
            "asymptotic": guarantee.asymptotic,
            "change": self.change(request),
            "absent": request.absent,
            "redrawn_coins": self.redraws,
            "unit": self.unit.value,
            "mechanism": {
                "sampling": m.sampling.value,
                "sampling_rate": m.rate,
                "noise_multiplier": m.effective_noise_multiplier,
                "rounds": m.count,
                "participation": m.participation,
            },
            "soundness_bits": self.soundness_bits,
            "attempts": None if self.soundness_bits is None else self.attempts,
            "runs": runs
            and {
                "count": len(runs.runs),
                "task_digest": runs.inputs.task_digest,
                "joint_privacy_cost": [asdict(cost) for cost in runs.privacy_cost()],
            },
        }


def _require_absences(absent: int, unit: Unit) -> None:
    """Refuse absences that nobody can select.

    Raises:
        Misconfiguration: a negative number, or records.
    """
    if checks.count("absent", absent) and unit is not Unit.CLIENT:
        raise Misconfiguration("absent", absent, "only clients are absent")
