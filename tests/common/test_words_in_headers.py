"""Under function secret sharing, and only then, a client signs two words about its norm."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rig.keys import verifier
from tests.rig.submissions import MODEL, ONE, pair_of, upload

from precad.aggregator.collect import Inbox
from precad.client.connection import differences
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import Digest, Role
from precad.common.ring import dot, signed
from precad.common.secret import Secret
from precad.common.share.mask import norm_offset, norm_point, norm_word
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.common.wire.submission_messages import header_from_wire, header_to_wire

D = 8
CHECKS = ("crypten", "fss")
TaskMaker = Callable[..., Task]


def refusal(task: Task, submission: Submission, spool: Path) -> RejectedSubmission:
    inbox = Inbox(submission.role, task, verifier(), spool)
    inbox.open(3, [ONE], MODEL, version=2)
    with pytest.raises(RejectedSubmission) as refused:
        upload(inbox, submission)
    return refused.value


def test_a_task_says_which_check_it_is_and_its_digest_holds_it(make_task: TaskMaker) -> None:
    tasks = {check: make_task(D, {"validation": check}) for check in CHECKS}
    assert make_task(D).digest == tasks["crypten"].digest != tasks["fss"].digest
    assert [tasks[check].words_in_headers for check in CHECKS] == [False, True]


def test_another_check_is_named_where_both_tasks_are_known(make_task: TaskMaker) -> None:
    one, other = (make_task(D, {"validation": check}) for check in CHECKS)
    assert differences(one, other.canonical) == "validation is 'crypten', not 'fss'"
    assert differences(one, one.canonical) == ""
    for nothing in (b"", b"{}", b"[" * 100_000, b'{"validation": "fss"}'):
        assert differences(one, nothing) == ""


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("server", [0, 1])
def test_headers_hold_words_where_the_task_says_so_and_nowhere_else(
    make_task: TaskMaker, tmp_path: Path, check: str, server: int
) -> None:
    task = make_task(D, {"validation": check})
    right, wrong = (
        pair_of(task, words=words)[server]
        for words in (task.words_in_headers, not task.words_in_headers)
    )
    inbox = Inbox(right.role, task, verifier(), tmp_path)
    inbox.open(3, [ONE], MODEL, version=2)
    upload(inbox, right)
    refused = refusal(task, wrong, tmp_path)
    assert refused.reason is Rejection.MALFORMED
    assert f"validation = '{check}'" in refused.detail
    assert isinstance(inbox.close()[ONE], Submission)


@pytest.mark.parametrize("missing", ["word_a", "word_b"])
def test_one_word_alone_is_malformed(make_task: TaskMaker, missing: str) -> None:
    message = header_to_wire(pair_of(make_task(D), words=True)[0])
    message.ClearField(missing)  # type: ignore[arg-type]
    with pytest.raises(RejectedSubmission, match="one word of the norm") as refused:
        header_from_wire(message, Role.SERVER_A)
    assert refused.value.reason is Rejection.MALFORMED


# --- what they add up to -------------------------------------------------------------------------


A, B = Role.SERVER_A, Role.SERVER_B
CTX, OTHER = Digest(b"\1" * 32), Digest(b"\2" * 32)
SEED, OTHER_SEED = Secret(b"\3" * 32), Secret(b"\4" * 32)
words = st.integers(-(2**63), 2**63 - 1)


@given(
    vectors=st.lists(st.tuples(words, words, words), min_size=1, max_size=6),
    masks=st.tuples(words, words),
    bound=st.integers(1, 2**25),
)
def test_point_and_offset_add_up_to_the_norms_excess(
    vectors: list[tuple[int, int, int]], masks: tuple[int, int], bound: int
) -> None:
    """For every update and every mask: c_y + t_y = X·X − β² − 1 mod 2^64."""
    x, a_a, a_b = np.array(vectors, dtype=np.int64).T
    b = x - a_a - a_b
    pair = zip((a_a, a_b), masks, strict=True)
    word_a, word_b = (norm_word(dot(b, a), mask) for a, mask in pair)
    point = norm_point(word_a, word_b, dot(b, b), bound)
    offset = norm_offset(dot(a_a + a_b, a_a + a_b), *masks)
    excess = sum(value * value for value, _, _ in vectors) - bound**2 - 1
    assert signed(point + offset) == signed(excess)


@given(crossed=words, mask=words, lie=words.filter(bool))
def test_a_word_is_right_for_one_value_alone(crossed: int, mask: int, lie: int) -> None:
    word = norm_word(crossed, mask)
    assert -(2**63) <= word < 2**63
    assert norm_word(crossed, signed(mask + lie)) != word
