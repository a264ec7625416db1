"""`timeout 100 precad demo` ends a group: the parts have groups of their own, and children."""

import signal
from pathlib import Path

from tests.integration.test_warm_start import check_that_no_part_is_left


def test_a_group_that_is_ended_leaves_no_part_behind(tmp_path: Path) -> None:
    check_that_no_part_is_left(tmp_path / "log", signal.SIGTERM, "group")
