"""The SDK for data owners: hand over data, a model and a loss, and take part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from precad.client.connection import Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participation, RoundView, take_part
from precad.client.pending import Pending
from precad.client.train import as_records, build, local_update, poisson_sample
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.identity.credentials import Identity
from precad.common.keystream import Keystream
from precad.common.model import initial_vector
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task
from precad.protos import precad_pb2 as pb


class DataOwner:
    """One data owner's part in a training.

    ```
    owner = DataOwner(
        "ward-3", task="task.toml", data=(x, y), identity="keys/ward-3",
        server_a="a.example:7301", server_b="b.example:7302", epsilon_limit=4.0,
    )
    result = owner.run()
    ```

    Args:
        client: this client's name, as in its certificate.
        task: the task, or its file.
        data: a pair of arrays or tensors ``(inputs, targets)`` with one row a record, or a
            map-style torch Dataset of such pairs.
        server_a: address of server A, ``host:port``.
        server_b: address of server B.
        identity: folder with ca.pem, cert.pem and key.pem, or what was loaded from it.
        model: torch module whose named parameters are the task's; built from the task's
            architecture (logistic, mlp) unless given.
        loss: ``loss(outputs, targets)`` as in torch.nn.functional; cross-entropy unless given.
        epsilon_limit: the owner's own limit of exact record-level ε against one corrupted
            server; taking part ends before it would be passed.
        record_rate: p_i; the task's unless given.
        state: folder where this owner's account and the open round's submission survive
            restarts; in memory unless given. As confidential as the records.
        token: one-time enrolment token from the operator, where the servers ask for one.

    Raises:
        Misconfiguration: task, data, model or limit can't be used; says which and what would do.
    """

    def __init__(
        self,
        client: str,
        *,
        task: Task | str | Path,
        data: Any,
        server_a: str,
        server_b: str,
        identity: Identity | str | Path,
        model: Any = None,
        loss: Any = None,
        epsilon_limit: float | None = None,
        record_rate: float | None = None,
        state: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        from torch.nn import functional  # noqa: PLC0415 -- seconds to import

        self.task = task if isinstance(task, Task) else Task.load(Path(task))
        self.client = ClientId(client)
        self._records = as_records(data)
        if len(self._records) == 0:
            raise Misconfiguration("data", "no records", "give at least one")
        self._record_rate = self.task.privacy.record_rate if record_rate is None else record_rate
        self._model = build(self.task.model) if model is None else model
        self._loss = functional.cross_entropy if loss is None else loss
        self._addresses = (server_a, server_b)
        self._identity = (
            Identity.load(Path(identity)) if isinstance(identity, str | Path) else identity
        )
        self._token = None if token is None else Secret(token.encode())
        folder = None if state is None else Path(state)
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        log = None if folder is None else folder / "participations.log"
        self.budget = OwnAccount(self.task, self._record_rate, epsilon_limit, log)
        kept = None if folder is None else folder / "pending.bin"
        self.pending = Pending(self.task, self.client, kept)

    def run(
        self, on_notice: Callable[[Participation, pb.Notice], None] | None = None
    ) -> Participation:
        """Enrol and take part until the training ends or the owner's limit is reached.

        Raises:
            TaskMismatch: a server runs another task.
            PeerUnavailable: a server isn't there.
            PeerViolation: the servers show different models.
        """
        self._rehearse()
        with Servers(self.task, self.client, *self._addresses, self._identity) as servers:
            servers.check_task()
            self.enrol(servers)
            return take_part(servers, self.budget, self.pending, self.update, on_notice)

    def enrol(self, servers: Servers) -> None:
        """Enrol at both servers with this owner's number of records. Raises as `Servers.enrol`."""
        servers.enrol(len(self._records), self._record_rate, self._token)

    def _rehearse(self) -> None:
        """One update over the first record, thrown away.

        A model, a loss or data that can't be used fail here, before anybody counts on this
        client; and torch is warm for round 0.
        """
        first = np.zeros(1, dtype=np.int64)
        theta = initial_vector(self.task.model)
        local_update(self._model, self._loss, self._records, first, theta, self.task)

    def update(self, view: RoundView) -> RingVector:
        """Algorithm 2 for one round: a Poisson sample of records, clipped, summed, encoded.

        The sample is drawn afresh from the CSPRNG, once a round.
        """
        randomness = Keystream(Secret.random(), "record-sample", view.attempt)
        indices = poisson_sample(len(self._records), self._record_rate, randomness)
        return local_update(self._model, self._loss, self._records, indices, view.theta, self.task)
