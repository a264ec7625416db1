"""The people who run both servers."""

import re
from contextlib import suppress

from tests.faults.processes import FaultyDeployment

from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role


class Operators:
    """Both servers' operators, who let the training go on whenever it asks them."""

    def __init__(self, deployment: FaultyDeployment) -> None:
        self._deployment = deployment
        self._looks = 0

    def look(self) -> None:
        """Give the word that a server waits for; every 50th time, as it is asked all the time."""
        self._looks += 1
        if self._looks % 50 != 1:
            return
        for role in (Role.SERVER_A, Role.SERVER_B):
            # Whoever is being started again is asked the next time.
            with suppress(PeerUnavailable, PeerViolation):
                said = self._deployment.operator(role).status().error
                if found := re.search(r"precad allow (\S+) .*--version (\d+)", said):
                    for each in (Role.SERVER_A, Role.SERVER_B):
                        self._deployment.operator(each).allow(found[1], int(found[2]))
