"""Load what the parts load, so that Python keeps its compiled modules beside them.

A part's file system is read-only: what isn't compiled in the image is compiled at every start.
Compiling all that is installed would add 200 MB of modules that nobody loads.
"""

import subprocess
import sys

LOADED = (
    "precad.dealer.process",
    "precad.server_a.process",
    "precad.server_b.process",
    "precad.common.aggregator.mpc.crypten_import",
    "precad.common.aggregator.store.upgrade",
    "precad.common.aggregator.work.start",
    "precad.client.data_owner",
    "precad.client.train",
    "precad.cli.start",
    "precad.cli.evaluate",
    "precad.cli.report.gather",
    "psycopg",
)

if __name__ == "__main__":
    for module in LOADED:
        # An image has some of them only.
        command = [sys.executable, "-c", f"import {module}"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)  # noqa: S603 - of LOADED
