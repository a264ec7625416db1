"""Load what the parts load, so that Python keeps its compiled modules beside them.

A part's file system is read-only: what isn't compiled in the image is compiled at every
start. Compiling all that is installed would add 200 MB of modules that nobody loads. An
image whose modules don't load fails here, and not at an owner's.
"""

import importlib
import importlib.util
import subprocess
import sys

LOADED = (
    "precad.dealer.process",
    "precad.server_a.process",
    "precad.server_b.process",
    "precad.aggregator.validate.crypten_import",
    "alembic.command",
    "precad.aggregator.workers.worker_placement",
    "precad.client.data_owner",
    "precad.client.gradients.local_update",
    "precad.cli.start",
    "precad.cli.owner_commands",
    "precad.cli.report_sources",
    "precad.simulation.datasets",
    "psycopg",
)


def load(module: str) -> None:
    """Import it, if what it needs is installed: an image is for some parts only."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if importlib.util.find_spec(str(error.name).partition(".")[0]) is not None:
            raise


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load(sys.argv[1])
    else:
        # A process for each, as the parts are.
        for module in LOADED:
            subprocess.run([sys.executable, __file__, module], check=True)  # noqa: S603 - its own
