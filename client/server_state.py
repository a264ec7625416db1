"""Where a server's training stands for the owner that asks, and how tasks differ."""

import json

from precad.common.errors import Misconfiguration, TaskMismatch
from precad.common.identifiers import Role
from precad.common.identity.mutual_tls import check_version
from precad.common.task import Task
from precad.protos import precad_pb2 as pb

ServerState = pb.DescribeReply
"""Where a server's training stands, for the owner that asks."""
_COMPARED_FIELDS = ("name", "validation", "projections", "fractional_bits")
"""Fields of a task whose difference is named; other fields differ in its digest."""


def differences(ours: Task, canonical: bytes) -> str:
    """Return in which of the most telling fields two tasks differ.

    ``canonical`` is the other task in its canonical bytes. The text is empty where they
    can't be read, or none of these fields differs.
    """
    try:
        theirs = Task.parse(json.loads(canonical))
    except (ValueError, RecursionError, Misconfiguration):
        return ""
    different = []
    for name in _COMPARED_FIELDS:
        our_value = getattr(ours, name)
        their_value = getattr(theirs, name)
        if our_value != their_value:
            different.append(f"{name} is {our_value!r}, not {their_value!r}")
    return ", ".join(different)


def state_of(reply: pb.DescribeReply, task: Task | None, role: Role) -> ServerState:
    """Return the state that a server describes, if it runs this version and ``task``.

    Raises TaskMismatch: it runs another task. PeerViolation: another wire version.
    """
    check_version(role.title, reply.wire_version)
    if task is not None and reply.task_digest != task.digest.value:
        raise TaskMismatch(
            str(task.digest),
            reply.task_digest.hex(),
            differences(task, reply.canonical_task),
        )
    return reply
