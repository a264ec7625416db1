"""The data owner: training, encoding, submitting.

`DataOwner` is the SDK. Below it, `precad.client.connection.Servers` submits any vector for a
round, and needs no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precad.client.data_owner import DataOwner

__all__ = ["DataOwner"]


def __getattr__(name: str) -> Any:
    # Light clients that submit vectors of their own never load torch.
    if name == "DataOwner":
        from precad.client.data_owner import DataOwner  # noqa: PLC0415

        return DataOwner
    raise AttributeError(name)
