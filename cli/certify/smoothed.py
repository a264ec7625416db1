"""Votes under input noise: of a trained model, or from files."""

import secrets
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from precad.certify.inputs import Integers
from precad.certify.intervals import vote_counts
from precad.cli.certify.read import read_array, true_labels
from precad.cli.certify.request import Smoothing
from precad.cli.trained import trained
from precad.common.errors import Misconfiguration
from precad.common.npy import Array
from precad.common.terminal.progress import bar

if TYPE_CHECKING:
    from precad.client.trained_model import TrainedModel


@dataclass(frozen=True, slots=True)
class Smoothed:
    """What is certified.

    Attributes:
        sigma: of the noise.
        votes: ``[points, classes]``.
        selection: the same, of other copies; None where every class pays.
        labels: ``[points]``, true ones; None where they aren't known.
        facts: what else there is to say.
    """

    sigma: float
    votes: Integers
    selection: Array | None
    labels: Array | None
    facts: dict[str, Any] = field(default_factory=dict)


def of_file(request: Smoothing) -> Smoothed:
    """Votes from a file. Raises Misconfiguration: no file, no σ, or files that don't fit."""
    if request.votes is None:
        raise Misconfiguration("votes", None, "give a file of votes, or a model and --data")
    if request.sigma is None:
        raise Misconfiguration("--sigma", None, "say how much noise the votes are under")
    counts = vote_counts(read_array("votes", request.votes))
    other = None if request.selection is None else read_array("selection", request.selection)
    labels = None if request.labels is None else true_labels(request.labels, len(counts))
    return Smoothed(request.sigma, counts, other, labels)


def of_model(request: Smoothing) -> Smoothed:
    """A trained model's votes on noisy copies of records, with progress on a terminal.

    Raises:
        Misconfiguration: an option is missing or beside the point, or a file can't be used.
    """
    # Seconds of torch.
    from precad.client.gradients.noisy_votes import DRAWS, Sampling, sample_votes  # noqa: PLC0415
    from precad.client.records.read_records import read_records  # noqa: PLC0415
    from precad.client.records.torch_records import as_records  # noqa: PLC0415

    beside = {"votes": request.votes, "--selection": request.selection, "--labels": request.labels}
    for name, value in beside.items():
        if value is not None:
            raise Misconfiguration(name, str(value), "leave it out: --data has records and labels")
    found, module, settings = trained(
        request.config, request.task, request.model_file, request.model
    )
    assert request.data is not None
    columns = None if settings is None else settings.columns
    records = as_records(read_records(request.data, found.task.data, columns))
    inputs, labels = records.inputs[: request.first], records.targets[: request.first]
    draw = secrets.randbelow(DRAWS) if request.draw is None else request.draw
    if request.keep is not None and request.keep.exists() and request.draw is None:
        draw = _kept_draw(request)
    how = Sampling(_sigma(request, found), request.select, request.copies, draw)
    with bar("noisy votes", len(inputs), sys.stderr) as line:
        votes = sample_votes(
            found.load_into(module),
            inputs,
            how,
            keep=request.keep,
            model=str(found.digest),
            progress=lambda number: line.update(number - line.n),
        )
    facts = {"model": str(found.digest), "selection_copies": how.selection, "draw": how.draw}
    return Smoothed(how.sigma, votes.votes, votes.selection, labels.numpy(), facts)


def _sigma(request: Smoothing, found: "TrainedModel") -> float:
    if request.sigma is not None:
        return request.sigma
    if found.task.objective is None:
        raise Misconfiguration(
            "--sigma", None, "the task's objective names none: say how much noise"
        )
    return found.task.objective.noise


def _kept_draw(request: Smoothing) -> int:
    """The draw of the votes that are kept."""
    from precad.client.gradients.noisy_votes import kept_draw  # noqa: PLC0415 -- torch

    assert request.keep is not None
    return kept_draw(request.keep)
