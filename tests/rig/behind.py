"""`precad` with a clock two hours behind where it is compared; gRPC needs a whole one."""

import time
from types import SimpleNamespace

from precad.cli.start import main
from precad.client import check_before_enrolling

if __name__ == "__main__":
    behind = SimpleNamespace(time=lambda: time.time() - 7200, monotonic=time.monotonic)
    check_before_enrolling.time = behind  # type: ignore[assignment, attr-defined]
    main()
