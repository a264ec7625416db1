"""The model as everybody agrees on it: one float64 vector, its digest, its step, its file."""

from precad.common.model.file import SavedModel, load_model, save_model
from precad.common.model.vector import (
    apply_update,
    byte_view,
    from_bytes,
    initial_vector,
    model_digest,
    tensors,
    to_bytes,
)

__all__ = [
    "SavedModel",
    "apply_update",
    "byte_view",
    "from_bytes",
    "initial_vector",
    "load_model",
    "model_digest",
    "save_model",
    "tensors",
    "to_bytes",
]
