"""`precad status --watch`: it follows a training through a server's absence, and ends with it."""

import io
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from click import unstyle
from tests.rig.clock import LeapingClock
from tests.rig.commands import refused
from tests.rig.terminal import Terminal

from precad.cli.operate import facts_of, follow
from precad.common.errors import PeerUnavailable
from precad.common.wire.calls import ServerStatus
from precad.common.wire.messages import values_of
from precad.protos import precad_pb2 as pb

ROUNDS = 4


def reply(version: int, phase: str, **more: Any) -> pb.StatusReply:
    return pb.StatusReply(
        role="server-a", task_name="wards", phase=phase, version=version, rounds=ROUNDS,
        enrolled=3, model_digest=bytes(32), kernel="numpy", participations={"ward-1": version},
        **more,
    )  # fmt: skip


def watched(*answers: pb.StatusReply | PeerUnavailable, out: io.StringIO | None = None) -> str:
    """Everything that was drawn, on a terminal unless ``out`` is given."""
    out = Terminal() if out is None else out
    found = (
        each if isinstance(each, PeerUnavailable) else facts_of(ServerStatus(**values_of(each)))
        for each in answers
    )
    follow(out, Mock(side_effect=found), 5.0, LeapingClock())
    return unstyle(out.getvalue())


def test_a_file_or_a_pipe_gets_a_line_for_each_change_and_none_for_each_look() -> None:
    gone = PeerUnavailable("refused")
    shown = watched(
        gone, gone,
        reply(0, "enrolling", missing=["ward-3"], enrolment_left_s=7200, most_owners=3),
        reply(0, "enrolling", missing=["ward-3"], enrolment_left_s=7190, most_owners=3),
        reply(0, "training", bytes_by_link={"a to b": 1}),
        reply(0, "training", bytes_by_link={"a to b": 2}),
        reply(2, "training"), reply(2, "training"), gone, gone,
        reply(2, "training", error="server-b is away"),
        reply(3, "training", rejected={"absent": 1}), reply(4, "done", rejected={"absent": 1}),
        out=io.StringIO(),
    )  # fmt: skip
    begun = "server-a, wards: training: round 2 of 4, 10 s each, about 20 s left; 3 owners enrolled"
    assert shown.splitlines() == [
        "no answer (refused); asking again every 5 s",
        (
            "server-a, wards: enrolling: round 0 of 4; 3 owners enrolled; enrolment takes 0 to 3"
            " owners, for 2.0 hours more; not enrolled yet: ward-3"
        ),
        "server-a, wards: training: round 0 of 4; 3 owners enrolled",
        begun,
        f"{begun}; no answer (refused); asking again every 5 s",
        f"{begun}; server-b is away",
        (
            "server-a, wards: training: round 3 of 4, 15 s each, about 15 s left; 3 owners"
            " enrolled; rejected: absent 1"
        ),
        "server-a, wards: done: round 4 of 4, 12 s each; 3 owners enrolled; rejected: absent 1",
    ]


def test_each_line_is_drawn_over_the_one_before() -> None:
    out = Terminal()
    watched(reply(1, "training"), reply(4, "done", rejected={"absent": 2}), out=out)
    assert out.screen() == [
        "server-a, wards",
        "done: round 4 of 4, 1.7 s each",
        "━" * 60,
        "3 owners enrolled, each took part 4 to 4 times",
        "rejected: absent 2",
        "0.0 MB sent and received",
        "model 0000000000000000…, projections by numpy",
    ]


def test_what_a_server_says_moves_no_cursor() -> None:
    for out in (Terminal(), io.StringIO()):
        shown = watched(reply(1, "stopped", error="\x1b[2J\x1b]0;x\x07[red]gone[/]"), out=out)
        assert "\x1b]" not in shown
        assert "\x1b[2J" not in out.getvalue()
        assert "[red]gone[/]" in shown


def test_a_live_screen_is_no_document(tmp_path: Path) -> None:
    watch = ("status", "127.0.0.1:1", "--identity", tmp_path, "--watch", "--json")
    assert "choose one of them" in refused(*watch)
