"""The SDK for data owners: hand over data, a model and a loss, and take part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from precad.client.account_file import ACCOUNT_FILE
from precad.client.connection import Servers
from precad.client.lock import held
from precad.client.own_account import OwnAccount
from precad.client.participant import Participation, RoundView, take_part
from precad.client.pending import Pending
from precad.client.private_log import PrivateLog
from precad.client.train import (
    as_records,
    build,
    local_update,
    most_records,
    poisson_sample,
    rehearse,
)
from precad.client.witness import Witness
from precad.common.durable import make_folder
from precad.common.enrolment import on_grid
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.identity.credentials import Identity
from precad.common.keystream import Keystream
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
            map-style torch Dataset of such pairs. Copied, and a Dataset read once, here: what
            changes later, such as a random augmentation, doesn't count. Scalers, vocabularies and
            the like must come from public data: what is fitted on the records isn't protected.
        server_a: address of server A, ``host:port``.
        server_b: address of server B.
        identity: folder with ca.pem, cert.pem and key.pem, or what was loaded from it.
        model: torch module whose named parameters are the task's; built from the task's
            architecture (logistic, mlp) unless given.
        loss: ``loss(outputs, targets)`` as in torch.nn.functional, over one record at a time;
            cross-entropy unless given.
        epsilon_limit: the owner's own limit of record-level ε against one corrupted server, over
            all tasks of the account; nothing of the records is shared beyond it. Fixed with the
            account's first charge. Neighbours differ in one record, replaced by one whose
            gradient is zero; how many records there are is public.
        record_rate: p_i; the task's unless given. Lowered to the next rate that the servers
            take (docs/enrolment.md).
        state: folder where the open version's update, what the servers signed and the account
            survive restarts, with a log of records that gave no gradient; in memory unless given.
            One folder a task and client, as confidential as the records.
        account: folder of the data set's account, for all tasks that these records take part in,
            one after the other or at once; the state folder unless given.
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
        account: str | Path | None = None,
        token: str | None = None,
    ) -> None:
        from torch.nn import functional  # noqa: PLC0415 -- seconds to import

        self.task = task if isinstance(task, Task) else Task.load(Path(task))
        self.client = ClientId(client)
        self._records = as_records(data)
        if len(self._records) == 0:
            raise Misconfiguration("data", "no records", "give at least one")
        # Sampling, claim and account use the same number, on the grid of rates that servers take.
        wanted = self.task.privacy.record_rate if record_rate is None else record_rate
        self._record_rate = on_grid(self.task, wanted)
        self._most = most_records(len(self._records), self._record_rate)
        self._model = build(self.task.model) if model is None else model
        self._loss = functional.cross_entropy if loss is None else loss
        self._addresses = (server_a, server_b)
        self._identity = (
            Identity.load(Path(identity)) if isinstance(identity, str | Path) else identity
        )
        self._token = None if token is None else Secret(token.encode())
        folder = self._folder = _folder(state)
        own = folder if account is None else _folder(account)
        log = None if own is None else own / ACCOUNT_FILE
        self.budget = OwnAccount(self.task, self._record_rate, epsilon_limit, log, self.client)
        self._failed = PrivateLog(None if folder is None else folder / "failed-records.log")
        kept = None if folder is None else folder / "pending.bin"
        self.pending = Pending(self.task, self.client, kept)
        self.witness = Witness(self.task, self.client, folder)

    def run(
        self, on_notice: Callable[[Participation, pb.Notice], None] | None = None
    ) -> Participation:
        """Enrol and take part until the training ends or the owner's limit is reached.

        Raises:
            Misconfiguration: model, loss and records don't go together; see `rehearse`. Another
                process uses the state folder. Raised before a server is called; afterwards no
                record makes this raise.
            TaskMismatch: a server runs another task.
            PeerUnavailable: a server isn't there.
            PeerViolation: the servers show different models, or one has forgotten what it signed.
            StorageFailure: the state folder can't be written.
        """
        rehearse(self._model, self._loss, self._records, self.task, self._most)
        with (
            held(self._folder),
            Servers(self.task, self.client, *self._addresses, self._identity) as servers,
        ):
            servers.check_task()
            self.enrol(servers)
            return take_part(
                servers, self.budget, self.pending, self.update, on_notice, witness=self.witness
            )

    def enrol(self, servers: Servers) -> None:
        """Enrol at both servers with this owner's number of records. Raises as `Servers.enrol`."""
        servers.enrol(len(self._records), self._record_rate, self._token)

    def update(self, view: RoundView) -> RingVector:
        """Algorithm 2 for one version: a Poisson sample of records, clipped, summed, encoded.

        The sample is drawn afresh from the CSPRNG, once a version. The work is that of
        ``most_records``, whatever was drawn and also where it is for show and none was, and a
        record that gives no gradient counts as zero and stands in the owner's private log alone.
        """
        randomness = Keystream(Secret.random(), "record-sample", view.attempt)
        indices = poisson_sample(len(self._records), self._record_rate, randomness)
        if view.covering:
            indices = indices[:0]
        failed: list[int] = []
        update = local_update(
            self._model,
            self._loss,
            self._records,
            indices,
            view.theta,
            self.task,
            most=self._most,
            on_failure=failed.append,
        )
        self._failed.note(view.attempt, failed)
        return update


def _folder(path: str | Path | None) -> Path | None:
    if path is None:
        return None
    make_folder(Path(path))
    return Path(path)
