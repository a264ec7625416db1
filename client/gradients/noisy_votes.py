"""Votes of a trained model on noisy copies of inputs.

This is the half of CERTIFY that samples (Cohen et al. 2019, Figure 2); the ``certify``
package makes certificates of the votes.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from precad.common import (
    Integers,
    Misconfiguration,
    append_line,
    checks,
    frozen_dataclass,
    frozen_kw_only_dataclass,
)

DRAWS = 2**63
"""How many draws of the noise there are: they are numbered from 0."""
BATCH = 512
"""Copies that the model takes at once: bounds the memory, and changes no vote."""
_MATRIX = 2
"""Dimensions of outputs with one column for each class."""


@frozen_kw_only_dataclass
class VoteSampling:
    """How votes are sampled: the noise, and how many copies of each input.

    Raises Misconfiguration: a parameter is out of its range.
    """

    sigma: float
    """Standard deviation of the noise, in the inputs' units."""
    selection: int = 100
    """n0, the copies that choose the label."""
    copies: int = 10_000
    """n, further copies that estimate how often the label wins."""
    draw: int = 0
    """Number of the noise's draw. Take a fresh one, unless a certificate is to be
    repeated; inputs must not be chosen by somebody who knows it."""

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.count("selection", self.selection, least=1)
        checks.count("copies", self.copies, least=1)
        if not 0 <= self.draw < DRAWS:
            raise Misconfiguration("draw", self.draw, "must be from 0 to below 2^63")


@frozen_dataclass
class Votes:
    """Labels that the model gave to independent noisy copies, counted by class."""

    selection: Integers
    """``[points, classes]``; each row sums to n0."""
    votes: Integers
    """``[points, classes]``; each row sums to n."""


def sample_votes(
    module: nn.Module,
    inputs: Tensor,
    how: VoteSampling,
    *,
    keep: Path | None = None,
    model: str = "",
    progress: Callable[[int], object] = lambda _: None,
    batch: int = BATCH,
) -> Votes:
    """Return the model's votes on noisy copies of each input.

    Each input's noise has a stream of its own, so that its votes don't depend on which
    others are sampled, or on whether the work was broken off.

    Args:
        module: the model with θ in it already; a copy is used, in evaluation mode.
        inputs: ``[points, …]``, real numbers.
        how: the noise and the numbers of copies.
        keep: file that gets each point's votes as they come; a later call with the same
            model, inputs and ``how`` goes on where it ended.
        model: the model's name in that file, such as its digest.
        progress: is told how many points are done.
        batch: copies that the model takes at once.

    Raises Misconfiguration: inputs aren't real numbers, the model has no column for
    each class, or the file belongs to other work.
    """
    points = len(inputs)
    if not inputs.is_floating_point() or not points:
        raise Misconfiguration(
            "data", str(inputs.dtype), "smoothing adds noise to real numbers"
        )
    # Convolutions of many small images are twice as fast this way round.
    module = copy.deepcopy(module).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        outputs = module(inputs[:1])
    if outputs.ndim != _MATRIX or outputs.shape[1] <= 1:
        raise Misconfiguration(
            "model",
            list(outputs.shape),
            "smoothing needs a column for each class",
        )
    classes = int(outputs.shape[1])

    def votes_of(point: int, stream: int, count: int) -> list[int]:
        """Return how many of ``count`` noisy copies of a point get each label.

        Each pair of a point and a stream has noise of its own.
        """
        seeds = np.random.SeedSequence([how.draw, point, stream])
        generator = torch.Generator()
        generator.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
        total = np.zeros(classes, np.int64)
        with torch.no_grad():
            for start in range(0, count, batch):
                shape = (min(batch, count - start), *inputs.shape[1:])
                noise = torch.randn(shape, generator=generator, dtype=torch.float32)
                labels = module(noise.mul_(how.sigma).add_(inputs[point])).argmax(dim=1)
                total += np.bincount(labels.cpu().numpy(), minlength=classes)
        return total.tolist()

    head = {"model": model, "points": points, "classes": classes, **asdict(how)}
    done = {} if keep is None else _kept(keep, head)
    progress(len(done))
    for point in range(points):
        if point in done:
            continue
        selection, votes = (
            votes_of(point, stream, count)
            for stream, count in enumerate((how.selection, how.copies))
        )
        done[point] = (selection, votes)
        if keep is not None:
            append_line(keep, json.dumps([point, selection, votes]))
        progress(len(done))
    whole = np.array([done[point] for point in range(points)], np.int64)
    return Votes(selection=whole[:, 0], votes=whole[:, 1])


def kept_draw(path: Path) -> int:
    """Return the number of the noise's draw that a file of votes is of.

    Raises Misconfiguration: the file holds no votes.
    """
    try:
        head = path.read_text(encoding="utf-8").split("\n")[0]
        return int(json.loads(head)["draw"])
    except (ValueError, KeyError, TypeError):
        raise _foreign(path) from None


def _foreign(path: Path) -> Misconfiguration:
    """Return the error for a file of other votes, or of none."""
    return Misconfiguration(
        "keep",
        path,
        "holds votes of another model or other sampling; name another file",
    )


def _kept(
    path: Path, head: dict[str, object]
) -> dict[int, tuple[list[int], list[int]]]:
    """Return the votes in a file by point: the selection's, then the others.

    Begins the file with ``head`` where there is none, and removes a last line that was
    cut short.

    Raises Misconfiguration: the file begins with another head.
    """
    if not path.exists():
        append_line(path, json.dumps(head, sort_keys=True))
        return {}
    lines = path.read_text(encoding="utf-8").split("\n")
    try:
        same = json.loads(lines[0]) == head
        # What follows the last end of line was cut short.
        rows = [json.loads(line) for line in lines[1:-1] if line]
    except ValueError:
        same = False
        rows = []
    if not same:
        raise _foreign(path)
    if lines[-1]:
        path.write_text("\n".join([*lines[:-1], ""]), encoding="utf-8")
    return {int(point): (selection, votes) for point, selection, votes in rows}
