"""The data owner: training, encoding, submitting, and the model that comes home.

`DataOwner` is the SDK. `model_section` describes a torch module for a task;
`load_initial`, `load_vector` and `TrainedModel` put θ_0, or any θ, into one. Below the
SDK, `precad.client.connection.Servers` submits any vector for a round, and needs no
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from precad.common import missing

if TYPE_CHECKING:
    from precad.client.data_owner import DataOwner
    from precad.client.gradients.evaluation import Evaluation
    from precad.client.gradients.torch_models import (
        load_initial,
        load_vector,
        model_section,
    )
    from precad.client.participation import (
        Participation,
        RoundInfo,
        TrainedModel,
    )
    from precad.client.records.columns import Columns

__all__ = [
    "Columns",
    "DataOwner",
    "Evaluation",
    "Participation",
    "RoundInfo",
    "TrainedModel",
    "load_initial",
    "load_vector",
    "model_section",
]

_HOMES = {
    "Columns": "records.columns",
    "DataOwner": "data_owner",
    "Evaluation": "gradients.evaluation",
    "Participation": "participation",
    "RoundInfo": "participation",
    "TrainedModel": "participation",
    "load_initial": "gradients.torch_models",
    "load_vector": "gradients.torch_models",
    "model_section": "gradients.torch_models",
}
"""The module of each name, below this package."""


def __getattr__(name: str) -> object:
    """Return one of the names above, whose module is loaded only now.

    Light clients, which submit vectors of their own, never load torch.

    Raises AttributeError: there is no such name. MissingPackage: an extra that it needs
    isn't installed.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"precad.client.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        raise missing(error, name, "client") or error from None
