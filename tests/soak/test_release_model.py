"""The release protocol's model with wider bounds, and every mutant of it: `make model`."""

import pytest
from tests.model import release_model as model
from tests.rig.commands import printed


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "arguments",
    [("--replace", "one"), ("--replace", "both", "--attempts", "2", "--sets", "1"), ("--mutants",)],
    ids=" ".join,
)
def test_nothing_is_broken_and_every_mutant_is_caught(arguments: tuple[str, ...]) -> None:
    printed(model.__file__, *arguments)
