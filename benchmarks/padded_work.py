"""How long a data owner's padded work takes, against the wait that hides it.

Writes results/padded_work.json beside itself. A round waits `deadlines.work` before
uploads begin; an owner whose padded work takes longer is late, whatever its records
are.
"""

import json
from pathlib import Path

from benchmarks.rounds.hardware import hardware
from benchmarks.rounds.padded import padded_work

RESULT = Path(__file__).parent / "results" / "padded_work.json"


def main() -> None:
    """Measure and write."""
    found = {"what": "padded_work.py", "hardware": hardware(), "sizes": padded_work()}
    RESULT.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
