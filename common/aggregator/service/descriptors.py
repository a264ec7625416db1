"""Room for connections: each client keeps one open, and most systems allow 1,024 at first."""

import logging
import resource

log = logging.getLogger("precad")

BESIDE_CLIENTS = 256
"""For the database, the spool, the other parties and what the libraries open."""
PER_CLIENT = 2
"""A client that reconnects has its old connection beside the new one for a moment."""


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
    return BESIDE_CLIENTS + PER_CLIENT * clients
