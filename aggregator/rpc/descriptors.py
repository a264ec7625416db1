"""Room for connections: each client keeps one open, and most systems allow 1,024 at first."""

import logging
import resource

log = logging.getLogger("precad")

BESIDE_CLIENTS = 256
"""For the database, the other parties and what the libraries open."""
CONNECTIONS_PER_CLIENT = 2
"""A client that reconnects has its old connection beside the new one for a moment."""
FILES_PER_CLIENT = 2
"""Uploads that it may have open, each with a file."""
STRANGERS = 1024
"""Connections of whoever isn't a client, has no place or has said nothing yet."""
LEAST_CONNECTIONS = 16


def allow_descriptors(wanted: int) -> int:
    """Raise this process's limit of open files to ``wanted``, as far as the system lets it.

    Returns:
        The limit from now on; a warning is logged where it is below ``wanted``.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= wanted:
        return soft
    target = wanted if hard == unlimited else min(wanted, hard)
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    if target < wanted:
        log.warning(
            "this process may open %d files and may need %d for its clients' connections; raise "
            "the system's limit (ulimit -n, or LimitNOFILE of its service)",
            target,
            wanted,
        )
    return target


def descriptors_for(clients: int) -> int:
    """How many descriptors a server may need for a task of ``clients`` clients."""
    return BESIDE_CLIENTS + STRANGERS + (CONNECTIONS_PER_CLIENT + FILES_PER_CLIENT) * clients


def connections_for(clients: int, allowed: int) -> int:
    """How many connections a server takes, so that its own files and links find room.

    Args:
        clients: of the task.
        allowed: descriptors that the process may open.
    """
    wanted = STRANGERS + CONNECTIONS_PER_CLIENT * clients
    # Where the system allows little, files come first: whoever isn't let in now comes again.
    left = allowed - BESIDE_CLIENTS - FILES_PER_CLIENT * clients
    return max(LEAST_CONNECTIONS, min(wanted, left))
