"""A part whose log is lines of JSON: ``python -m tests.rig.json_log MODULE ARGUMENT…``.

``precad.cli.forked`` really starts whatever has another value of a variable that is
read at a process's start. This one is read where a log begins, so a forked process may
set it itself. ``warm.forked_with_json_log`` starts it, and nothing is imported here that
a part doesn't have.
"""

import os
import runpy
import sys

from precad.common.process import VARIABLE

if __name__ == "__main__":
    os.environ[VARIABLE] = "json"
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
