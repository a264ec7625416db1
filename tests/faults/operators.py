"""The people who run both servers."""

import re
import time
from contextlib import suppress

from tests.faults.processes import FaultyDeployment

from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role


class Operators:
    """Both servers' operators, who let the training go on whenever it asks them."""

    def __init__(self, deployment: FaultyDeployment) -> None:
        self._deployment = deployment
        self._next = 0.0

    def look(self) -> None:
        """Give the word that a server waits for, once a second at most."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 1.0
        for role in (Role.SERVER_A, Role.SERVER_B):
            # Whoever is being started again is asked the next time.
            with suppress(PeerUnavailable, PeerViolation):
                said = self._deployment.operator(role).status(timeout_s=2.0).error
                if found := re.search(r"precad allow (\S+) .*--version (\d+)", said):
                    for each in (Role.SERVER_A, Role.SERVER_B):
                        self._deployment.operator(each).allow(found[1], int(found[2]))
