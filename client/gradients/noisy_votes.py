"""Votes of a trained model on noisy copies of inputs: the sampling half of Cohen's CERTIFY."""

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.files import append_line

DRAWS = 2**63
"""Draws of the noise are numbered below."""
BATCH = 512
"""Copies at a time: bounds the memory, and changes no vote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteSampling:
    """How inputs are sampled: ``sigma`` of the noise, in the inputs' units, and n0 and n copies.

    ``selection``, n0, choose the label, and ``copies``, n fresh ones, estimate how
    often it wins. ``draw`` of the noise is a fresh one, unless a certificate is to be
    repeated; inputs must not be chosen by somebody who knows it.
    """

    sigma: float
    selection: int = 100
    copies: int = 10_000
    draw: int = 0

    def __post_init__(self) -> None:
        checks.positive("sigma", self.sigma)
        checks.count("selection", self.selection, least=1)
        checks.count("copies", self.copies, least=1)
        if not 0 <= self.draw < DRAWS:
            raise Misconfiguration("draw", self.draw, "must be from 0 to below 2^63")


@dataclass(frozen=True, slots=True)
class Votes:
    """What independent copies were taken for, ``[points, classes] int64``; rows sum to n0, to n."""

    selection: NDArray[np.int64]
    votes: NDArray[np.int64]


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
    """The model's labels of noisy copies of each input.

    Each input's noise has a stream of its own, so that its votes don't depend on which
    others are sampled, or on whether the work was broken off.

    ``module`` has θ in it already and is used in evaluation mode; ``inputs`` are
    ``[points, …]``, floating. The file ``keep`` gets each point's votes as they come,
    under the model's name, such as its digest: a later call with the same model, inputs
    and ``how`` goes on where it ended. ``progress`` is told how many points are done;
    ``batch`` copies are taken at a time.

    Raises Misconfiguration: inputs aren't real numbers, the model has no column a
    class, or the file belongs to other work.
    """
    if not inputs.is_floating_point() or not len(inputs):
        raise Misconfiguration(
            "data", str(inputs.dtype), "smoothing adds noise to real numbers"
        )
    # Convolutions of many small images are twice as fast this way round.
    module = copy.deepcopy(module).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        outputs = module(inputs[:1])
    if outputs.ndim != 2 or outputs.shape[1] < 2:  # noqa: PLR2004
        raise Misconfiguration(
            "model", list(outputs.shape), "smoothing needs a column for each class"
        )
    classes = int(outputs.shape[1])
    head = {"model": model, "points": len(inputs), "classes": classes, **asdict(how)}
    done = {} if keep is None else _kept(keep, head)
    progress(len(done))
    for point in range(len(inputs)):
        if point in done:
            continue
        first, second = (
            _votes(
                module,
                inputs[point],
                how,
                count=count,
                classes=classes,
                stream=(point, stream),
                batch=batch,
            )
            for stream, count in enumerate((how.selection, how.copies))
        )
        done[point] = (first, second)
        if keep is not None:
            append_line(keep, json.dumps([point, first, second]))
        progress(len(done))
    rows = [done[point] for point in range(len(inputs))]
    selection, votes = (np.array([row[i] for row in rows], np.int64) for i in (0, 1))
    return Votes(selection, votes)


def _votes(
    module: nn.Module,
    x: Tensor,
    how: VoteSampling,
    *,
    count: int,
    classes: int,
    stream: tuple[int, int],
    batch: int,
) -> list[int]:
    seed = int(
        np.random.SeedSequence([how.draw, *stream]).generate_state(1, np.uint64)[0]
    )
    generator = torch.Generator().manual_seed(seed)
    total = np.zeros(classes, np.int64)
    with torch.no_grad():
        for start in range(0, count, batch):
            shape = min(batch, count - start), *x.shape
            noise = torch.randn(shape, generator=generator, dtype=torch.float32)
            labels = module(noise.mul_(how.sigma).add_(x)).argmax(dim=1)
            total += np.bincount(labels.cpu().numpy(), minlength=classes)
    found: list[int] = total.tolist()
    return found


def kept_draw(path: Path) -> int:
    """The draw that a kept file is of. Raises Misconfiguration: it holds no votes."""
    try:
        return int(json.loads(path.read_text(encoding="utf-8").split("\n")[0])["draw"])
    except (ValueError, KeyError, TypeError):
        raise _foreign(path) from None


def _foreign(path: Path) -> Misconfiguration:
    return Misconfiguration(
        "keep",
        str(path),
        "holds votes of another model or other sampling; name another file",
    )


def _kept(
    path: Path, head: dict[str, object]
) -> dict[int, tuple[list[int], list[int]]]:
    """Points that an earlier call sampled; begins the file where there is none."""
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
    return {int(point): (first, second) for point, first, second in rows}
