"""Where a server's training stands for the owner that asks, and how tasks differ."""

import json

from precad.common import Misconfiguration, Role, Secret, Task, TaskMismatch
from precad.common.identity import Identity, check_version, open_channel
from precad.common.wire import errors_of
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub

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


def ask_for_state(
    task: Task | None,
    identity: Identity,
    role: Role,
    address: str,
    within_s: float,
    token: Secret | None,
) -> ServerState:
    """Ask a server for its state, over a connection that is opened for this alone.

    With ``task`` the server must run exactly this task. It looks at ``token``, which
    stays unused. ``within_s`` is the longest time that this takes.

    Raises TaskMismatch, Misidentified, PeerUnavailable, PeerViolation: as
    ``Servers.check_task``.
    """
    request = pb.DescribeRequest(token=token_text(token))
    with (
        open_channel(address, identity, role) as channel,
        errors_of(role.title, address),
    ):
        # Whoever answers there is the server: a first connection that is slow is tried
        # again.
        describe = AggregationStub(channel).Describe
        reply = describe(request, timeout=within_s, wait_for_ready=True)
    return state_of(reply, task, role)


def token_text(token: Secret | None) -> str:
    """Return an operator's one-time token as messages hold it; empty for none."""
    return "" if token is None else token.reveal().decode()
