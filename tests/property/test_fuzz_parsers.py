"""Whatever comes from outside, a parser ends in its value or in an error of ours with
few words.

The same targets, guided by coverage and with a million inputs: tests/soak/test_fuzz.py.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fuzz.stage import join
from tests.fuzz.targets import TARGETS, inputs_near, seeds_of

from precad.common.errors import PeerUnavailable, PeerViolation
from precad.protos import precad_pb2 as pb

pytestmark = pytest.mark.filterwarnings("ignore")
quick = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
SEED, INPUTS = 5, 300
Message = TypeVar("Message")


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_comes_is_understood_or_refused_in_few_words(name: str) -> None:
    for data in [*seeds_of(name), *inputs_near(name, SEED, INPUTS)]:
        try:
            TARGETS[name].check(data)
        except BaseException as error:
            error.add_note(f"input {data!r}")
            raise


@pytest.mark.parametrize("name", ["submit-a", "submit-b", "submit-seed", "submit-body"])
def test_an_upload_that_ends_right_is_held(name: str) -> None:
    """So that what is near it goes as far as the server goes."""
    assert TARGETS[name].parse(seeds_of(name)[-1]) is True


def test_of_a_dealers_answers_a_row_key_and_a_share_alone_are_taken() -> None:
    # Apart, and in one message.
    own, *others, together = seeds_of("square-replies")
    for good in (own, together):
        TARGETS["square-replies"].parse(good)
    for other in others:
        with pytest.raises((PeerViolation, PeerUnavailable)):
            TARGETS["square-replies"].parse(other)


large = st.sampled_from([2**63, 2**64, -(2**63), 10**400])
single = (
    st.none()
    | st.booleans()
    | st.integers()
    | large
    | st.floats()
    | st.text(max_size=8)
)
nested: tuple[Callable[..., st.SearchStrategy[object]], ...] = (
    st.lists,
    partial(st.dictionaries, st.text(max_size=4)),
)
json_values: st.SearchStrategy[object] = st.recursive(
    single,
    lambda inner: st.one_of(*(kind(inner, max_size=3) for kind in nested)),
    max_leaves=6,
)


def replaced(value: object, path: list[int], new: object) -> object:
    """The document with one part, found by counting along ``path``, replaced."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    if isinstance(value, dict):
        key = list(value)[path[0] % len(value)]
        return {**value, key: replaced(value[key], path[1:], new)}
    at = path[0] % len(value)
    return [*value[:at], replaced(value[at], path[1:], new), *value[at + 1 :]]


@pytest.mark.parametrize("name", ["task-canonical", "run-summary"])
@quick
@given(
    number=st.integers(0, 20),
    path=st.lists(st.integers(0, 20), max_size=4),
    new=json_values,
)
def test_documents_with_one_value_of_another_kind(
    name: str, number: int, path: list[int], new: object
) -> None:
    seeds = seeds_of(name)
    seed = seeds[number % len(seeds)]
    document = replaced(json.loads(seed), path, new)
    TARGETS[name].check(json.dumps(document).encode())


integers = st.integers(0, 2**64 - 1)
small_bytes = st.binary(max_size=40)
names = st.text(max_size=12) | st.sampled_from(["ward-1", "ward-2", "", "A" * 5000])


def of_bytes(
    kind: type[Message], *fields: str, **others: st.SearchStrategy[object]
) -> st.SearchStrategy[Message]:
    """Messages of a kind whose fields are any bytes, but for others."""
    return st.builds(kind, **dict.fromkeys(fields, small_bytes), **others)


proofs = of_bytes(
    *(
        pb.ProofHeader,
        "opening_a",
        "opening_b",
        "commitment",
        "bits_digest",
        "proof_digest",
    )
)
headers = of_bytes(
    *(
        pb.SubmissionHeader,
        "task_digest",
        "model_digest",
        "nonce",
        "commitment_a",
        "commitment_b",
    ),
    *("body_digest", "seed", "salt", "signature"),
    version=integers,
    attempt=integers,
    client=names,
    certificates=st.lists(small_bytes, max_size=6),
    proof=st.none() | proofs,
)


@quick
@given(header=headers, body=small_bytes)
def test_submissions_of_any_fields(header: pb.SubmissionHeader, body: bytes) -> None:
    TARGETS["submission-header"].check(header.SerializeToString())
    pieces = (pb.SubmissionPiece(header=header), pb.SubmissionPiece(body=body))
    for target in ("submit-a", "submit-b", "submit-seed", "submit-body"):
        TARGETS[target].check(join(*(piece.SerializeToString() for piece in pieces)))


@quick
@given(
    request=st.builds(
        pb.EnrolRequest,
        client=names,
        records=integers,
        record_rate=st.floats(),
        token=names,
    ),
    right_task=st.booleans(),
)
def test_enrolments_of_any_fields(request: pb.EnrolRequest, right_task: bool) -> None:  # noqa: FBT001
    if right_task:
        request.task_digest = pb.EnrolRequest.FromString(
            seeds_of("enrol")[0]
        ).task_digest
    TARGETS["enrol"].check(request.SerializeToString())
