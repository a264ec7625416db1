"""Where Flower is: installed (`precad[bench]`), or in `make flower`'s folder."""

import os
import sys
from importlib.metadata import distributions

from benchmarks.rounds.part import ROOT

FOLDER = ROOT / "build" / "flower"


def version() -> str | None:
    """Flower's version; None where it isn't there."""
    for found in distributions(name="flwr", path=[*sys.path, str(FOLDER)]):
        return found.version
    return None


def environment() -> dict[str, str]:
    """What a part that imports Flower has beside this process's variables."""
    # Behind what is there: nothing else of the folder comes before this package's own.
    paths = [path for path in (os.environ.get("PYTHONPATH"), str(FOLDER)) if path]
    return {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": os.pathsep.join(paths)}
