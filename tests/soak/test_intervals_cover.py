"""Each measure's 95 % interval covers what it is of in 93 to 97 % of 400 draws."""

import pytest
from tests.rig.held_out import KINDS, coverage

DRAWS, RECORDS = 400, 250
COVERED, ROOM = 0.95, 0.02


@pytest.mark.parametrize("kind", KINDS)
def test_each_interval_covers_95_percent_within_2(kind: str) -> None:
    shares = coverage(kind, DRAWS, RECORDS)
    outside = {key: s for key, s in shares.items() if abs(s - COVERED) > ROOM}
    assert outside == {}, shares
