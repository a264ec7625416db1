"""`precad plan`: what σ gives an ε, or what ε a σ gives, and how many attackers it bounds."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from precad.cli.options import json_option, print_json, task_file_option, task_numbers
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.accounting.guarantees import PrivacyStatement
    from precad.cli.planning import Robustness
    from precad.common.task import Task

_NUMBERS = ("record_rate", "client_rate", "rounds", "delta", "record_clip", "dimension")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What `precad plan` is asked; the fields are its options."""

    task: Path | None
    epsilon: float | None
    noise_multiplier: float | None
    record_rate: float | None
    client_rate: float | None
    rounds: int | None
    delta: float | None
    record_clip: float | None
    client_clip: float | None
    dimension: int | None
    clients: int | None
    malicious: int | None
    loss: float
    tolerated_loss: float
    loss_bound: float
    change: Literal["replacements", "additions"]
    as_json: bool

    def robustness(self) -> "Robustness":
        """Return what malicious owners may cause; one owner where no number is given."""
        from precad.cli.planning import Robustness  # noqa: PLC0415

        return Robustness(
            malicious=1 if self.malicious is None else self.malicious,
            loss=self.loss,
            tolerated_loss=self.tolerated_loss,
            loss_bound=self.loss_bound,
            change=self.change,
        )


@click.command()
@task_file_option
@click.option("--epsilon", type=float, help="ε of a record against one curious server: gives σ.")
@click.option("--noise-multiplier", type=float, help="σ, in place of --epsilon: gives ε.")
@click.option("--record-rate", type=float, help="p: a record is drawn with it, 0 to 1.")
@click.option("--client-rate", type=float, help="q: an owner is drawn with it, 0 to 1.")
@click.option("--rounds", type=int, help="T: rounds of the training.")
@click.option("--delta", type=float, help="δ: above 0 and below 1, like 1e-5.")
@click.option("--record-clip", type=float, help="R: bound on a record's gradient.")
@click.option(
    "--client-clip", type=float, help="C: bound on an owner's update; or give --malicious."
)
@click.option("--dimension", type=int, help="d: parameters of the model.")
@click.option("--clients", type=int, help="n: owners; says what --malicious costs.")
@click.option(
    "--malicious",
    type=int,
    help="K: owners that may submit anything; without --client-clip C is chosen for them.",
)
@click.option(
    "--change",
    type=click.Choice(["replacements", "additions"]),
    default="replacements",
    help="What the K do: honest ones turn bad, or bad ones join.",
)
@click.option(
    "--loss", type=float, default=0.2, help="L: expected loss on one record without attackers."
)
@click.option(
    "--tolerated-loss",
    type=float,
    default=0.5,
    help="The loss that attackers may cause at most, above L.",
)
@click.option(
    "--loss-bound", type=float, default=1.0, help="B: the largest value that the loss takes."
)
@json_option
def plan(**given: Any) -> None:
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

    With --task its numbers are taken, and --epsilon gives another σ for it.

    For example:

    \b
        precad plan --epsilon 3 --delta 1e-5 --record-rate 0.05 \\
          --client-rate 1 --rounds 200 --record-clip 1 --client-clip 10 \\
          --dimension 7850
        precad plan --epsilon 2 --delta 1e-5 --record-rate 0.1 \\
          --client-rate 0.1 --rounds 200 --record-clip 1 --malicious 1 \\
          --clients 1000 --dimension 7850
        precad plan --task task.toml --epsilon 2
    """  # noqa: D301 -- click reads the control character
    request = PlanRequest(**given)
    made = planned(request)
    from precad.cli.task_file import statements  # noqa: PLC0415

    exact = statements(made)
    found = _document(request, made, exact)
    if request.as_json:
        print_json(found, indent=2)
    else:
        _show(found, exact)


def planned(request: PlanRequest) -> "Task":
    """Return the task of the request's numbers, with σ and C where they were left open.

    Raises:
        Misconfiguration: a number is missing, given beside the task that has it, or out of its
            range, or no task can have it.
    """
    # NumPy and SciPy load here, so that `precad --help` doesn't wait for them.
    from precad.cli import planning  # noqa: PLC0415
    from precad.common.task import Task  # noqa: PLC0415

    given: Mapping[str, Any] = asdict(request)
    of_task = (*_NUMBERS, "noise_multiplier", "client_clip", "clients")
    if request.task is not None:
        task_numbers(given, of_task, ())
        loaded = Task.load(request.task)
        if request.epsilon is None:
            return loaded
        privacy = loaded.privacy
        taken = planning.participations_of(privacy.client_rate, loaded.training.rounds)
        least = planning.least_noise(request.epsilon, privacy.delta, privacy.record_rate, taken)
        values = loaded.model_dump(mode="json")
        values["privacy"] |= {"noise_multiplier": least}
        return Task.parse(values)
    numbers = task_numbers(given, _NUMBERS, ())
    if (request.epsilon is None) == (request.noise_multiplier is None):
        raise Misconfiguration("epsilon", request.epsilon, "give --epsilon or --noise-multiplier")
    if request.client_clip is None and request.malicious is None:
        raise Misconfiguration("client_clip", None, "give --client-clip, or --malicious")
    clip = request.client_clip
    sigma = request.noise_multiplier
    if request.epsilon is not None:
        taken = planning.participations_of(numbers["client_rate"], numbers["rounds"])
        sigma = planning.least_noise(
            request.epsilon, numbers["delta"], numbers["record_rate"], taken
        )
    assert sigma is not None
    if clip is None:
        clip, raised = request.robustness().clip_and_noise(
            numbers["record_clip"], sigma, numbers["client_rate"], numbers["rounds"]
        )
        # A σ that was given stays: then C is no less than R, and the plan says what that bounds.
        if request.noise_multiplier is None:
            sigma = raised
    return Task.parse(_with(numbers, sigma, clip))


def _with(numbers: dict[str, Any], sigma: float, clip: float) -> dict[str, Any]:
    """A task of these numbers, as ``Task.parse`` takes it."""
    from precad.cli.planning import fractional_bits, template_of  # noqa: PLC0415

    values = template_of(numbers["dimension"], numbers["delta"])
    values["privacy"] |= {
        "record_clip": numbers["record_clip"],
        "client_clip": clip,
        "noise_multiplier": sigma,
        "record_rate": numbers["record_rate"],
        "client_rate": numbers["client_rate"],
    }
    values["training"]["rounds"] = numbers["rounds"]
    return values | {"fractional_bits": fractional_bits(clip)}


def _document(
    request: PlanRequest, made: "Task", exact: "tuple[PrivacyStatement, ...]"
) -> dict[str, Any]:
    """One JSON object; what leaves floating point becomes null when it is printed."""
    from precad.cli import planning  # noqa: PLC0415

    asked, privacy = request.robustness(), made.privacy
    mu = planning.client_mu(made)
    owners = request.clients if request.task is None else made.enrolment.clients
    taken = planning.participations_of(privacy.client_rate, made.training.rounds)
    uploads = made.training.rounds if privacy.cover_uploads else taken
    costs = None
    if request.malicious is not None and owners is not None:
        costs = asked.noise_over_signal(made.dimension, owners)
    return {
        "status": "planned",
        "task": {
            "privacy": privacy.model_dump(mode="json", exclude={"epsilon_limit"}),
            "training": {"rounds": made.training.rounds},
            "fractional_bits": made.fractional_bits,
        },
        "participations": taken,
        "upload_bytes": uploads * (8 * made.dimension + 32),
        "statements": [each.to_json() for each in exact],
        "robustness": {
            **asdict(asked),
            "client_mu": mu,
            "loss_replacements": asked.worst_loss(mu, "replacements"),
            "loss_additions": asked.worst_loss(mu, "additions"),
            "certified": planning.certified(made, asked),
            "noise_over_signal": costs,
        },
    }


def _show(found: dict[str, Any], statements: "tuple[PrivacyStatement, ...]") -> None:
    """Print the plan for people."""
    from precad.accounting.guarantees import ASSUMED  # noqa: PLC0415
    from precad.common.terminal import say  # noqa: PLC0415

    privacy = found["task"]["privacy"]
    record = statements[0]
    say(
        sys.stdout,
        f"Planned: σ = {privacy['noise_multiplier']:g} gives a record ε = {record.epsilon:.4g} at "
        f"δ = {record.delta:g}, against one curious server. Into the task:",
        style="bold",
    )
    names = ("record_clip", "client_clip", "noise_multiplier", "record_rate", "client_rate")
    say(
        sys.stdout,
        "".join(f"    privacy.{name} = {privacy[name]}\n" for name in names)
        + f"    training.rounds = {found['task']['training']['rounds']}\n"
        f"    fractional_bits = {found['task']['fractional_bits']}",
    )
    say(
        sys.stdout,
        f"It costs an owner up to {found['participations']:,} participations and "
        f"{found['upload_bytes'] / 1e6:,.1f} MB of uploads.",
    )
    for each in statements:
        what = f"at {each.compositions:,} participations" if each.malicious_server else "planned"
        broken = each.advantage_delta
        added = "" if broken is None else f"; δ and {broken:.0e} more ({ASSUMED})"
        say(
            sys.stdout,
            f"  {what}: ε = {each.epsilon:.3g} ({each.adjacency}), {each.against}{added}",
        )
    _show_robustness(found["robustness"])


def _show_robustness(asked: dict[str, Any]) -> None:
    from precad.common.terminal import say  # noqa: PLC0415

    owners, some = asked["malicious"], asked["certified"]
    plural = "" if owners == 1 else "s"
    say(
        sys.stdout,
        f"With {owners:,} malicious owner{plural} a loss of {asked['loss']:g} becomes at most "
        f"{asked['loss_replacements']:.3g} by replacements, {asked['loss_additions']:.3g} by "
        "additions, by the central limit theorem: planned, not a certificate.",
    )
    say(
        sys.stdout,
        f"Certified to stay at or below {asked['tolerated_loss']:g}, exactly: up to "
        f"{some['clients_replaced']:,} owners replaced, {some['clients_added']:,} added, or "
        f"{some['records']:,} records added or deleted.",
    )
    costs = asked["noise_over_signal"]
    if costs is not None:
        say(
            sys.stdout,
            f"That costs: a run's noise is at least {costs:.2g} times its signal. More owners, or "
            "fewer parameters, make it less.",
        )
