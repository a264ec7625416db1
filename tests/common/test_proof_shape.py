"""The sizes of proofs: those of docs/soundness.md's table, and none without a sound proof."""

import numpy as np
import pytest
from tests.rig.tasks import task_with

from precad.common.errors import Misconfiguration
from precad.common.proof_shape import MOST_BOUND, P, ProofShape
from precad.norm_check.norm_proof import bits_of

BOUNDS = [1, 2, 3, 7, 8, 9, 2**20 - 1, 2**20, 2**20 + 1, 2**25 - 1, 2**25]
SMALL = [ProofShape(d, beta) for d in (1, 7, 90, 650, 9000) for beta in (1, 1000, 2**25)]


@pytest.mark.parametrize(
    ("dimension", "points", "columns"),
    [(650, 64, 112), (10**4, 128, 128), (10**5, 256, 424), (10**6, 1024, 984), (10**7, 4096, 2448)],
)
def test_sizes_are_those_of_the_table(dimension: int, points: int, columns: int) -> None:
    shape = ProofShape(dimension, MOST_BOUND)
    assert (shape.points, shape.columns) == (points, columns)
    assert shape.used < shape.points
    # What crosses between the servers, both ways: 16 KB at 10^6 coordinates.
    assert 2 * 8 * (ProofShape(10**6, MOST_BOUND).columns + 2) < 16_000


@pytest.mark.parametrize("shape", SMALL, ids=lambda s: f"{s.dimension}-{s.bound}")
def test_no_other_sizes_cost_less(shape: ProofShape) -> None:
    """c_w is the least that fits N, and N the power of two with the least 2N + 2c_w."""

    def fits(columns: int, points: int) -> bool:
        rows = -(-shape.dimension // columns) + 2 * -(-shape.bits // columns)
        return rows <= points - 1

    assert fits(shape.columns, shape.points)
    cost = 2 * shape.points + 2 * shape.columns
    for log in range(2, 16):
        for columns in range(8, cost // 2, 8):
            if 2 * 2**log + 2 * columns < cost:
                assert not fits(columns, 2**log)
    assert shape.body_words == shape.dimension + shape.bits + 1 + shape.used + shape.points


def test_sizes_of_no_sound_proof_are_refused() -> None:
    for sizes, named in (
        ((8, 5, 99), "projections"),
        ((8, 0, 100), "client_clip"),
        ((8, 2**25 + 1, 100), "client_clip"),
        ((0, 5, 100), "dimension"),
        ((2**33, 2**25, 100), "dimension"),
    ):
        with pytest.raises(Misconfiguration, match=named):
            ProofShape(*sizes)


@pytest.mark.parametrize("beta", BOUNDS)
def test_weights_write_the_whole_width_and_nothing_else(beta: int) -> None:
    shape = ProofShape(48, beta)
    assert sum(shape.weights) == 16 * beta - 1
    assert all(each > 0 for each in shape.weights)
    for z in (-8 * beta, -1, 0, 1, 8 * beta - 1, shape.weights[-1] - 8 * beta):
        written = bits_of(shape, np.full(shape.rows, z), 0)[: len(shape.weights)]
        assert set(written.tolist()) <= {0, 1}
        assert sum(w * int(e) for w, e in zip(shape.weights, written, strict=True)) == z + 8 * beta


def test_a_task_digest_covers_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever would compute others is another task's: p, k, N, c_w and w."""
    task = task_with({"validation": "proof"})
    assert task.proof is not None
    sizes = task.proof.parameters
    assert sizes == (P, 100, task.proof.points, task.proof.columns, len(task.proof.weights))
    digests = {task.digest}
    for place in range(len(sizes)):
        other = tuple(each + (number == place) for number, each in enumerate(sizes))
        with monkeypatch.context() as patch:
            # A plain attribute of the class in the property's place.
            patch.setattr(ProofShape, "parameters", other)
            digests.add(task_with({"validation": "proof"}).digest)
    assert len(digests) == 1 + len(sizes)


def test_a_task_with_proofs_has_a_hundred_rows_or_more_and_no_dealer() -> None:
    task = task_with({"validation": "proof"})
    assert (task.projections, task.has_dealer, task_with({}).has_dealer) == (100, False, True)
    assert task_with({"validation": "proof", "projections": 128}).projections == 128
    for wrong, words in (({"projections": 99}, "at least 100"), ({"validation": "fss"}, "proof")):
        with pytest.raises(Misconfiguration, match=words):
            task_with({"validation": "proof", **wrong})
