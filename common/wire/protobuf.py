"""Any message of protos/precad.proto as plain values by field, and strictly back."""

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from precad.common.errors import PeerViolation
from precad.protos import precad_pb2 as pb


def encode(name: str, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of message ``name``.

    Args:
        values: by field; a message within as a mapping, bytes also as hex, None for what is absent.

    Raises ValueError: a value doesn't fit its field, or there is no such field.
    """
    message = getattr(pb, name)()
    _fill(message, values)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def decode(name: str, data: bytes) -> dict[str, Any]:
    """Return the values of message ``name`` by field; of optional ones those that are there.

    Raises PeerViolation: it isn't such a message, or holds anything besides its fields.
    """
    try:
        message = getattr(pb, name).FromString(data)
    except DecodeError:
        raise PeerViolation(
            f"unreadable {name} from the other server: {len(data)} bytes that aren't such a message"
        ) from None
    # Unknown fields, a field twice, a number in a longer form than its own: whatever a writer of
    # this version doesn't write takes other bytes than what was read of it.
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        raise PeerViolation(
            f"unreadable {name} from the other server: {len(data)} bytes, of which its fields take "
            f"{message.ByteSize()}"
        )
    return values_of(message)


def _fill(message: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            raise ValueError(f"{message.DESCRIPTOR.name} has no field {name}")
        if value is None:
            continue
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                inner = getattr(message, name)
                inner = inner.add() if field.is_repeated else inner
                inner.SetInParent()
                _fill(inner, each)
        elif field.is_repeated:
            getattr(message, name).extend(_scalar(field, each) for each in value)
        else:
            setattr(message, name, _scalar(field, value))


def _scalar(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str):
        return bytes.fromhex(value)
    return value


def values_of(message: Any) -> dict[str, Any]:
    """Return a message's values by field; of optional ones those that are there."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            found[field.name] = dict(value)
        elif field.is_repeated:
            inner = field.message_type is not None
            found[field.name] = tuple(map(values_of, value)) if inner else tuple(value)
        elif field.has_presence and not message.HasField(field.name):
            continue
        else:
            found[field.name] = value if field.message_type is None else values_of(value)
    return found
