"""Errors as another process gets them."""

import copy

import pytest

from precad.common.errors import Misconfiguration, PrecadError, Rejection
from precad.common.errors import RejectedSubmission as Rejected
from precad.common.extras import MissingPackage


@pytest.mark.parametrize(
    "error",
    [
        PrecadError("x" * 5000),
        Misconfiguration("--data", "nowhere", "name a folder"),
        MissingPackage("precad serve", "torch", "server"),
        Rejected(Rejection.ABSENT, "nothing came"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_beyond_its_process(error: PrecadError) -> None:
    # By the protocol that takes it to another process.
    there = copy.copy(error)
    assert type(there) is type(error)
    assert str(there) == str(error)
    assert vars(there) == vars(error)
