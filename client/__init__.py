"""The data owner: training, encoding, submitting, and the model that comes home.

`DataOwner` is the SDK. `model_section` describes a torch module for a task;
`load_initial`, `load_vector` and `TrainedModel` put θ_0, or any θ, into one. Below the
SDK, `precad.client.connection.Servers` submits any vector for a round, and needs no
torch.
"""

from precad.common import missing
from precad.common.homes import shown_by

__all__, _shown = shown_by(__file__)


def __getattr__(name: str) -> object:
    """Return one of the names above, whose module is loaded only now.

    Light clients, which submit vectors of their own, never load torch.

    Raises AttributeError: there is no such name. MissingPackage: an extra that it needs
    isn't installed.
    """
    try:
        return _shown(name)
    except ModuleNotFoundError as error:
        raise missing(error, name, "client") or error from None
