"""Whatever comes from outside, a parser ends in its value or in an error of ours with few words.

The same targets, guided by coverage and for much longer: tests/fuzz.
"""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from tests.fuzz.stage import join, split
from tests.fuzz.targets import TARGETS, seeds_of

from precad.common.errors import PeerUnavailable, PeerViolation
from precad.protos import precad_pb2 as pb

pytestmark = pytest.mark.filterwarnings("ignore")
quick = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STREAMS = (
    "submit-a",
    "submit-b",
    "submit-a-fss",
    "submit-b-fss",
    "squares",
    "square-replies",
    "link",
    "client",
    "deal-words",
    "signature",
)
AWKWARD = (
    b"9" * 30,
    b"9" * 5000,
    b"-1",
    b"nan",
    b"1e999",
    b"\xff" * 8,
    b"\0",
    b"[" * 3000,
    b"null",
)


@st.composite
def edited(draw: DrawFn, name: str) -> bytes:
    """A well-formed input with a few bytes replaced, inserted or left out."""
    data = bytearray(draw(st.sampled_from(seeds_of(name))))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.sampled_from([0, 1, 1, 2, 8]))
        data[start:end] = draw(st.one_of(st.binary(max_size=4), st.sampled_from(AWKWARD)))
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
@quick
@given(data=st.data())
def test_edited_inputs(name: str, data: st.DataObject) -> None:
    TARGETS[name].check(data.draw(edited(name)))


@pytest.mark.parametrize("name", TARGETS)
@settings(quick, max_examples=20)
@given(data=st.binary(max_size=200))
def test_any_bytes(name: str, data: bytes) -> None:
    TARGETS[name].check(data)


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_understood_or_refused(name: str) -> None:
    for seed in seeds_of(name):
        TARGETS[name].check(seed)


def test_of_a_dealers_answers_the_own_keys_alone_are_evaluated() -> None:
    # Apart, and in one message.
    own, *others, together = seeds_of("square-replies")
    for good in (own, together):
        TARGETS["square-replies"].parse(good)
    for other in others:
        with pytest.raises((PeerViolation, PeerUnavailable)):
            TARGETS["square-replies"].parse(other)


@pytest.mark.parametrize("name", STREAMS)
@quick
@given(data=st.data())
def test_streams_in_any_order_repeated_or_cut_short(name: str, data: st.DataObject) -> None:
    pieces = split(data.draw(st.sampled_from(seeds_of(name))))
    chosen = data.draw(st.lists(st.sampled_from(pieces), max_size=12))
    TARGETS[name].check(join(*chosen))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, 2**64, -(2**63), 10**400])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def replaced(value: Any, path: list[int], new: object) -> Any:
    """The document with one part, found by counting along ``path``, replaced."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    if isinstance(value, dict):
        key = list(value)[path[0] % len(value)]
        return {**value, key: replaced(value[key], path[1:], new)}
    at = path[0] % len(value)
    return [*value[:at], replaced(value[at], path[1:], new), *value[at + 1 :]]


@pytest.mark.parametrize("name", ["task-canonical", "peer-messages", "run-summary"])
@settings(quick, max_examples=80)
@given(number=st.integers(0, 20), path=st.lists(st.integers(0, 20), max_size=4), new=json_values)
def test_documents_with_one_value_of_another_kind(
    name: str, number: int, path: list[int], new: object
) -> None:
    seeds = seeds_of(name)
    seed = seeds[number % len(seeds)]
    head = 1 if name == "peer-messages" else 0
    document = replaced(json.loads(seed[head:]), path, new)
    TARGETS[name].check(seed[:head] + json.dumps(document).encode())


integers = st.integers(0, 2**64 - 1)
small_bytes = st.binary(max_size=40)
names = st.text(max_size=12) | st.sampled_from(["ward-1", "ward-2", "", "A" * 5000])


@settings(quick, max_examples=200)
@given(
    header=st.builds(
        pb.SubmissionHeader,
        task_digest=small_bytes,
        version=integers,
        attempt=integers,
        client=names,
        model_digest=small_bytes,
        nonce=small_bytes,
        commitment_a=small_bytes,
        commitment_b=small_bytes,
        body_digest=small_bytes,
        seed=small_bytes,
        salt=small_bytes,
        signature=small_bytes,
        certificates=st.lists(small_bytes, max_size=6),
        word_a=st.none() | st.integers(-(2**63), 2**63 - 1),
        word_b=st.none() | st.integers(-(2**63), 2**63 - 1),
    ),
    body=small_bytes,
)
def test_submissions_of_any_fields(header: pb.SubmissionHeader, body: bytes) -> None:
    TARGETS["submission-header"].check(header.SerializeToString())
    pieces = (pb.SubmissionPiece(header=header), pb.SubmissionPiece(body=body))
    for target in ("submit-a", "submit-b", "submit-a-fss", "submit-b-fss"):
        TARGETS[target].check(join(*(piece.SerializeToString() for piece in pieces)))


@settings(quick, max_examples=200)
@given(
    request=st.builds(
        pb.EnrolRequest, client=names, records=integers, record_rate=st.floats(), token=names
    ),
    right_task=st.booleans(),
)
def test_enrolments_of_any_fields(request: pb.EnrolRequest, right_task: bool) -> None:  # noqa: FBT001
    if right_task:
        request.task_digest = pb.EnrolRequest.FromString(seeds_of("enrol")[0]).task_digest
    TARGETS["enrol"].check(request.SerializeToString())
