"""Settings of a data owner's process."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, PrivateAttr, SecretStr

from precad.client.own_code import own_model, own_object
from precad.client.read import Columns
from precad.common.identity.credentials import Identity
from precad.common.settings import Address, Settings
from precad.common.task import Task

if TYPE_CHECKING:
    from precad.client.data_owner import DataOwner


class JoinSettings(Settings):
    """A data owner's settings file."""

    client: str
    server_a: Address
    server_b: Address
    data: Path
    """The records: a .npz file with arrays x and y, a .csv or a .parquet file."""
    state: Path
    """Folder for what survives this process: one a task and client."""
    account: Path | None = None
    """Folder of the data set's account, the same for all tasks; the state folder unless given."""
    held_out: Path | None = None
    """Records like `data` that aren't trained on: each model is tried on them, for the owner."""
    epsilon_limit: Annotated[float, Field(gt=0)] | None = None
    record_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    token: SecretStr | None = None
    """One-time enrolment token from the operator, where the servers ask for one."""
    columns: Columns = Columns()
    """What a table's columns are."""
    model: str | None = None
    """A model of one's own, MODULE:NAME, from the settings' folder or the current one; called
    without arguments. The task's architecture unless given."""
    loss: str | None = None
    """A loss of one's own, MODULE:NAME, as in torch.nn.functional; cross-entropy unless given."""
    _folder: Path | None = PrivateAttr(default=None)
    """Where the file lies."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """Settings from a TOML file. Raises Misconfiguration naming file, field and remedy."""
        loaded = super().load(path)
        loaded._folder = path.resolve().parent  # noqa: SLF001 -- its own
        return loaded

    def own_model(self) -> Any:
        """The torch module that ``model`` makes; None without one. Raises Misconfiguration."""
        return None if self.model is None else own_model(self.model, self._folder)

    def own_loss(self) -> Any:
        """What ``loss`` names; None without one. Raises Misconfiguration."""
        return None if self.loss is None else own_object("loss", self.loss, self._folder)

    def data_owner(self, data: Any = None, model: Any = None, loss: Any = None) -> "DataOwner":
        """The data owner that these settings describe.

        Args:
            data: its records; the settings' unless given, and so the others.
            model: its torch module.
            loss: its loss.

        Raises:
            Misconfiguration: task, data, model, identity or limit can't be used.
        """
        # torch takes seconds: whoever only looks at settings does without.
        from precad.client.data_owner import DataOwner  # noqa: PLC0415

        return DataOwner(
            self.client,
            task=Task.load(self.task),
            data=self.data if data is None else data,
            server_a=self.server_a,
            server_b=self.server_b,
            identity=Identity.load(self.identity),
            model=self.own_model() if model is None else model,
            loss=self.own_loss() if loss is None else loss,
            epsilon_limit=self.epsilon_limit,
            record_rate=self.record_rate,
            state=self.state,
            account=self.account,
            token=None if self.token is None else self.token.get_secret_value(),
            columns=self.columns,
            held_out=self.held_out,
        )
