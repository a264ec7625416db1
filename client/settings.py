"""Settings of a data owner's process."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SecretStr

from precad.client.data_owner import DataOwner
from precad.common.identity.credentials import Identity
from precad.common.settings import Address, Settings
from precad.common.task import Task


class JoinSettings(Settings):
    """A data owner's settings file."""

    client: str
    server_a: Address
    server_b: Address
    data: Path
    """npz file with arrays x and y."""
    state: Path
    """Folder for what survives this process: one a task and client."""
    account: Path | None = None
    """Folder of the data set's account, the same for all tasks; the state folder unless given."""
    epsilon_limit: Annotated[float, Field(gt=0)] | None = None
    record_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    token: SecretStr | None = None
    """One-time enrolment token from the operator, where the servers ask for one."""

    def data_owner(self, data: Any) -> DataOwner:
        """The data owner that these settings describe, over ``data``. Raises Misconfiguration."""
        return DataOwner(
            self.client,
            task=Task.load(self.task),
            data=data,
            server_a=self.server_a,
            server_b=self.server_b,
            identity=Identity.load(self.identity),
            epsilon_limit=self.epsilon_limit,
            record_rate=self.record_rate,
            state=self.state,
            account=self.account,
            token=None if self.token is None else self.token.get_secret_value(),
        )
