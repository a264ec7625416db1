"""An owner's bound follows its claim, and both servers hold it to exactly that one.

Whole rounds under both checks: β_i by hand, norms at it and one unit of the square
beyond, and submissions that look alike whatever their owner's size.
"""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conftest import small_task
from tests.rig.keys import signer
from tests.rig.rounds import no_noise, play_round

from precad.common.errors import Misconfiguration, Rejection
from precad.common.fixed_point import clip_update, squared_norm
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.roster import Enrolment, Roster
from precad.common.submission import HeldBody, SubmissionContext
from precad.common.task import Task
from precad.norm_check.proof_submission import ForProof
from precad.norm_check.share_update import share

D = 6
P = 0.5
CHECKS = ("crypten", "proof")
SMALL, MIDDLE, LARGE = (ClientId(name) for name in ("small", "middle", "large"))
SIZES = {SMALL: 3, MIDDLE: 60, LARGE: 50_000}


def by_size(check: str = "crypten", **clip: float) -> Task:
    return small_task(
        D,
        {
            "privacy.record_clip": 0.125,
            "privacy.client_clip": {"per_record": 1.3, "most": 30.1} | clip,
            "privacy.record_rate": P,
            "enrolment.clients": 3,
            "enrolment.max_expected_records": 25_000.0,
            "validation": check,
        },
    )


def roster() -> Roster:
    return Roster({name: Enrolment(name, n, P) for name, n in SIZES.items()})


def bounds(task: Task) -> dict[ClientId, int]:
    return {c: task.mechanism.bound_of(claim) for c, claim in roster().items()}


def on_axis(length: int, more: int = 0) -> NDArray[np.int64]:
    """A vector whose squared norm is length² + more²."""
    x = np.zeros(D, np.int64)
    x[2] = -length
    x[-1] = more
    return x


def test_bounds_by_hand() -> None:
    units = 2**20
    # c·max(1, p·n)·R·2^f, rounded down; and C where that is less.
    assert bounds(by_size(per_record=2.0, most=30.0)) == {
        SMALL: int(2 * 1.5 * 0.125 * units),
        MIDDLE: int(2 * 30 * 0.125 * units),
        LARGE: 30 * units,
    }
    # Who samples less than a record on average can still send one whole.
    (smallest,) = Roster({SMALL: Enrolment(SMALL, 1, P / 8)}).values()
    assert by_size(per_record=1.0).mechanism.bound_of(smallest) == units // 8


@given(
    st.floats(1, 1000),
    st.integers(1, 50_000),
    st.sampled_from(by_size().mechanism.unit_rates),
)
def test_a_bound_is_the_exact_number_rounded_down(c: float, n: int, p: float) -> None:
    task = by_size(per_record=c)
    with localcontext() as exact:
        exact.prec = 400
        units = max(Decimal(1), Decimal(p) * n)
        longest = Decimal(c) * units * Decimal("0.125") * 2**task.fractional_bits
        expected = min(task.mechanism.bound, int(longest))
    found = task.mechanism.bound_of(Enrolment(SMALL, n, p))
    assert found == expected
    # One whole record always fits, so no owner's clip cuts it.
    assert found >= 0.125 * 2**task.fractional_bits - 1


@pytest.mark.parametrize("check", CHECKS)
def test_exactly_the_own_bound_passes(check: str) -> None:
    task = by_size(check)
    lengths = bounds(task)
    sent = {client: on_axis(length) for client, length in lengths.items()}
    a, b = play_round(task, sent, roster=roster(), noise=no_noise)
    assert a.valid == b.valid == tuple(sorted(sent))
    total = sum(sent.values())
    assert (a.noisy_sum == total).all()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "beyond",
    ["one more in the square", "one unit longer", "half of the way to C", "C"],
)
def test_nothing_beyond_the_own_bound_counts(check: str, beyond: str) -> None:
    task = by_size(check)
    lengths = bounds(task)
    most = task.mechanism.bound
    assert lengths[SMALL] < lengths[MIDDLE] < lengths[LARGE] == most

    def too_long(own: int) -> NDArray[np.int64]:
        return {
            "one more in the square": on_axis(own, 1),
            "one unit longer": on_axis(own + 1),
            "half of the way to C": on_axis((own + most) // 2),
            "C": on_axis(most),
        }[beyond]

    # The largest owner sends what it may, so that its neighbours are judged beside it.
    sent = {
        SMALL: too_long(lengths[SMALL]),
        MIDDLE: too_long(lengths[MIDDLE]),
        LARGE: on_axis(most),
    }
    a, b = play_round(task, sent, roster=roster(), noise=no_noise)
    assert a.valid == b.valid == (LARGE,)
    assert a.rejections == dict.fromkeys((SMALL, MIDDLE), Rejection.NORM_EXCEEDED)
    assert (a.noisy_sum == sent[LARGE]).all()


@pytest.mark.parametrize("check", CHECKS)
def test_submissions_of_small_and_large_owners_have_one_size(check: str) -> None:
    task = by_size(check)
    seen: set[tuple[int, ...]] = set()
    for client, length in bounds(task).items():
        context = SubmissionContext(
            task=task.digest, version=0, attempt=0, client=client, model=Digest.of(b"m")
        )
        stated = ForProof((Digest.of(b"a"), Digest.of(b"b")), Role.SERVER_A)
        pair = share(
            task, on_axis(length), context, signer(client), stated, bound=length
        )
        (body,) = (part.body for part in pair if isinstance(part.body, HeldBody))
        seen.add((len(body.words), len(body.prefix)))
    assert len(seen) == 1


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(SIZES)))
def test_an_honest_clip_ends_within_the_own_bound(seed: int, client: ClientId) -> None:
    task = by_size()
    bound = bounds(task)[client]
    generator = np.random.default_rng(seed)
    longer = generator.integers(-(2**24), 2**24, D)
    clipped = clip_update(longer, bound, task.fractional_bits)
    assert squared_norm(clipped) <= bound**2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"privacy.client_clip": {"per_record": 0.5, "most": 3.0}}, "per_record"),
        ({"privacy.client_clip": {"per_record": 2.0}}, "most"),
        ({"privacy.client_clip": {"per_record": 2.0, "most": 0.001}}, "record_clip"),
        ({"privacy.client_clip": -1.0}, "client_clip"),
        ({"privacy.client_clip": "30"}, "client_clip"),
    ],
)
def test_a_wrong_bound_is_refused_by_its_name(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(Misconfiguration, match=words):
        small_task(D, changes)


def test_a_number_has_the_digest_that_it_always_had() -> None:
    plain = small_task(D, {"privacy.client_clip": 30.1})
    assert b'"client_clip":30.1' in plain.canonical
    table = by_size(per_record=2.0, most=30.1)
    assert table.digest != by_size(per_record=3.0, most=30.1).digest != plain.digest
