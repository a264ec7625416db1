"""The data owner: training, encoding, submitting, and the model that comes home.

`DataOwner` is the SDK; `model_section` describes a torch module for a task, `load_vector` and
`TrainedModel` put θ back into one. Below it, `precad.client.connection.Servers` submits any vector
for a round, and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precad.client.data_owner import DataOwner
    from precad.client.participant import Participation
    from precad.client.progress import Evaluation, RoundInfo
    from precad.client.read import Columns
    from precad.client.tensorboard import TensorBoard
    from precad.client.train.models import load_vector, model_section
    from precad.client.trained_model import TrainedModel

__all__ = [
    "Columns",
    "DataOwner",
    "Evaluation",
    "Participation",
    "RoundInfo",
    "TensorBoard",
    "TrainedModel",
    "load_vector",
    "model_section",
]

_HOMES = {
    "Columns": "read",
    "DataOwner": "data_owner",
    "Evaluation": "progress",
    "Participation": "participant",
    "RoundInfo": "progress",
    "TensorBoard": "tensorboard",
    "TrainedModel": "trained_model",
    "load_vector": "train.models",
    "model_section": "train.models",
}


def __getattr__(name: str) -> Any:
    # Light clients that submit vectors of their own never load torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"precad.client.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from precad.common.extras import missing  # noqa: PLC0415

        raise missing(error, name, "client") or error from None
