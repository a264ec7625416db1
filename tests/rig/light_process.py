"""A client without torch as a process: submits zeros in every round until the training ends."""

import sys
import tomllib
from pathlib import Path

import numpy as np
from tests.rig.proofs_context import stated_for_proof

from precad.client.connection import Servers
from precad.common import errors, identifiers
from precad.common.clock import CLOCK
from precad.common.identity.credentials import Identity
from precad.common.task import Task
from precad.common.wire.messages import RoundOpen, TrainingOver


def main() -> None:
    path = Path(sys.argv[sys.argv.index("--config") + 1])
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    task = Task.load(path.parent / settings["task"])
    identity = Identity.load(path.parent / settings["identity"])
    client = identifiers.ClientId(settings["client"])
    with Servers(
        task,
        client,
        server_a=settings["server_a"],
        server_b=settings["server_b"],
        identity=identity,
    ) as servers:
        servers.check_task()
        servers.enrol(1, task.privacy.record_rate)
        answered = -1
        while True:
            try:
                for notice in servers.watch():
                    if isinstance(notice, TrainingOver):
                        return
                    if isinstance(notice, RoundOpen) and notice.attempt > answered:
                        answered = notice.attempt
                        pair = servers.prepare(
                            version=notice.version,
                            attempt=answered,
                            model=notice.model,
                            x=np.zeros(task.dimension, dtype=np.int64),
                            proof=stated_for_proof(servers, answered),
                        )
                        servers.submit(pair)
            except errors.PeerUnavailable:
                CLOCK.sleep(0.2)


if __name__ == "__main__":
    main()
