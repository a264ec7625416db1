"""A process that hangs says where: `kill -USR1` writes the stack of each of its threads to its log.

File names, line numbers and names of functions: no value, so that no secret is in it.
"""

import faulthandler
import signal
import sys


def says_where_it_hangs() -> None:
    """From now on, also in processes split off from this one; nothing on Windows, without USR1."""
    if sys.platform != "win32":
        # Standard error as it is when the signal comes: children may have sent it elsewhere.
        faulthandler.register(signal.SIGUSR1, file=2)
