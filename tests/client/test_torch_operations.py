"""What a whole number may be at most: around every number that the operations really give."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.client.gradients.torch_operations import MODEL, NotTaken, Operations

SPECIAL = [float("nan"), float("inf"), -float("inf"), 3.4e38, -3.4e38, 0.1, -0.5, 7.9]
ENDS = st.sampled_from([-300.0, -2.0, -0.5, 0.0, 0.1, 1.0, 3.0, 9.5, 255.0, 3e9])
STEPS = st.one_of(
    *(
        st.tuples(st.just(name), ENDS)
        for name in ("mul", "add", "sub", "div", "clamp_min", "clamp_max", "rsub")
    ),
    st.tuples(st.just("clamp"), ENDS, ENDS),
    st.tuples(st.just("nan_to_num"), ENDS, ENDS, ENDS),
    *(
        st.tuples(st.just(name))
        for name in ("floor", "ceil", "round", "trunc", "neg", "relu", "abs", "long")
    ),
    *(st.tuples(st.just(name)) for name in ("float", "double", "twice", "sorted")),
    st.tuples(st.just("to"), st.sampled_from([torch.uint8, torch.int32, torch.half])),
)


def stepped(x: torch.Tensor, step: tuple[Any, ...]) -> torch.Tensor:
    name, *values = step
    if not x.is_floating_point() and name != "div":
        values = [int(each) if isinstance(each, float) else each for each in values]
    if name == "div" and values == [0.0]:
        return x
    if name == "rsub":
        return torch.as_tensor(values[0] - x)
    if name == "twice":
        return torch.cat([x, x * 2])
    if name == "sorted":
        return x.sort()[0]
    if name in ("nan_to_num", "abs") and x.dtype == torch.uint8:
        return x
    found: torch.Tensor = getattr(x, name)(*values)
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(STEPS, min_size=1, max_size=6),
    st.lists(st.floats(width=32), max_size=8),
)
def test_no_number_lies_outside_the_extremes_that_are_followed(
    steps: list[Any], numbers: list[float]
) -> None:
    x = torch.tensor(numbers + SPECIAL)
    with Operations([], [x]) as seen:
        for step in steps:
            try:
                x = stepped(x, step)
            except (RuntimeError, TypeError, OverflowError):
                return  # Torch doesn't take it, at any values
    extremes = seen._extremes_in(x)
    assert seen._origin(x) == MODEL
    missing = x.isnan()
    assert not missing.any() or bool(extremes.isnan().any())
    known = extremes[~extremes.isnan()]
    if not missing.all():
        assert x[~missing].min() >= known.min()
        assert x[~missing].max() <= known.max()


TABLE = torch.linspace(1, 2, 10)


@pytest.mark.parametrize(
    ("index", "taken"),
    [
        (lambda x: x.long(), False),
        (lambda x: x.long().clamp(0, 9), True),
        (lambda x: x.long().clamp(0, 10), False),
        (lambda x: x.long().clamp(-1, 9), False),
        (lambda x: x.long().clamp_(0, 9), False),
        (lambda x: x.long().clamp(0, 9).view(-1, 1).expand(-1, 2), True),
        (lambda x: x.argmax(), True),
        (lambda x: x.long().max(0)[0], False),
        (lambda x: x.long().sort()[0], False),
        (lambda x: x.long().max(), False),
        (lambda x: x.reshape(2, 2).max(0)[1] * 9, True),
        (lambda x: x.reshape(2, 2).max(0)[1] * 10, False),
        (lambda x: x.reshape(2, 2).argmax() * 3, True),
        (lambda x: x.reshape(2, 2).argmax() * 4, False),
        (lambda x: x.argmin(0, keepdim=True), True),
        (lambda x: x.sort()[1] * 4, False),
        (lambda x: x.sort()[1] * 3, True),
        (lambda x: (x > 0).long() * 9, True),
        (lambda x: (x > 0).long() * 10, False),
        (lambda x: torch.bucketize(x, TABLE), False),
        (lambda x: x.view(torch.int32).long(), False),
        (lambda x: x.relu().clamp(0, 9).view(torch.int32).long(), False),
        (lambda x: x.clamp(0, 9).long(), False),
        (lambda x: x.nan_to_num().clamp(0, 9).long(), True),
        (lambda x: (x.nan_to_num().clamp(0, 1) * 9).long(), True),
        (lambda x: (x.nan_to_num().clamp(0, 1) * 10).long(), False),
        (lambda x: (x.sigmoid().nan_to_num() * 9).long(), False),
    ],
)
def test_a_whole_number_indexes_only_a_table_that_has_its_row(
    index: Any, *, taken: bool
) -> None:
    x = torch.tensor([0.5] * 4)
    ways: tuple[Any, ...] = (
        lambda rows: TABLE[rows],
        TABLE.take,
        lambda rows: TABLE.gather(0, rows),
        lambda rows: TABLE.index_select(0, rows),
        lambda rows: torch.zeros(10).scatter(0, rows, 1.0),
        lambda rows: torch.nn.functional.embedding(rows, TABLE[:, None]),
        lambda rows: TABLE.index_add(0, rows, torch.ones(rows.numel())),
    )
    for lookup in ways:
        with Operations([], [x]):
            try:
                lookup(index(x.clone()).reshape(-1))
            except NotTaken:
                assert not taken
            except (IndexError, RuntimeError):
                pytest.fail("an index was taken that isn't in the table")
            else:
                assert taken
