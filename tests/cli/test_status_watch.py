"""`precad status --watch`: it follows a training through a server's absence, and ends with it."""

import io
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.rig.clock import LeapingClock
from tests.rig.terminal import Terminal

from precad.cli import watch as watching
from precad.cli.main import app
from precad.cli.status_command import facts_of
from precad.cli.watch import watch
from precad.common.errors import PeerUnavailable
from precad.common.wire.operator_connection import ServerStatus
from precad.protos import precad_pb2 as pb

ROUNDS = 4


def reply(version: int, phase: str, **more: Any) -> pb.StatusReply:
    return pb.StatusReply(
        role="server-a", task_name="wards", phase=phase, version=version, rounds=ROUNDS,
        enrolled=3, model_digest=bytes(32), kernel="numpy", participations={"ward-1": version},
        **more,
    )  # fmt: skip


def asking(*answers: pb.StatusReply | PeerUnavailable) -> Callable[[], dict[str, Any]]:
    left = list(answers)

    def ask() -> dict[str, Any]:
        answer = left.pop(0)
        if isinstance(answer, PeerUnavailable):
            raise answer
        return facts_of(ServerStatus.from_wire(answer))

    return ask


def watched(*answers: pb.StatusReply | PeerUnavailable, out: io.StringIO | None = None) -> str:
    """Everything that was drawn, on a terminal unless ``out`` is given."""
    out = Terminal() if out is None else out
    watch(out, {"": asking(*answers)}, 5.0, LeapingClock())
    return out.getvalue()


def test_it_follows_the_rounds_says_how_long_is_left_and_ends_with_the_training() -> None:
    shown = watched(
        reply(0, "enrolling"), reply(1, "training"), reply(2, "training"), reply(4, "done")
    )
    assert "enrolling: round 0 of 4" in shown
    assert "training: round 2 of 4, 5 s each, about 10 s left" in shown
    assert "done: round 4 of 4" in shown
    assert "nothing rejected" in shown


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    gone = PeerUnavailable("refused")
    shown = watched(gone, reply(1, "training", error="server-b is away"), gone, reply(1, "stopped"))
    assert shown.count("no answer (refused); asking again every 5 s") >= 2
    assert "server-b is away" in shown
    assert "stopped: round 1 of 4" in shown


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


def of(task: str, version: int, phase: str, **more: Any) -> pb.StatusReply:
    made = reply(version, phase, **more)
    made.task_name = task
    return made


def test_several_tasks_have_a_block_each_and_the_last_one_ends_it() -> None:
    out = Terminal()
    asks = {
        "wards": asking(of("w", 1, "training"), of("w", 4, "done"), of("w", 4, "done")),
        "clinics": asking(
            of("c", 0, "enrolling", missing=["ward-3"], most_owners=3),
            of("c", 1, "training", error="server-b is away"),
            of("c", 4, "done", rejected={"absent": 2}),
        ),
    }
    watch(out, asks, 5.0, LeapingClock())
    assert out.screen() == [
        "wards  done: round 4 of 4, 1.7 s each",
        "━" * 60,
        "server-a; 3 owners enrolled",
        "",
        "clinics  done: round 4 of 4, 2.5 s each",
        "━" * 60,
        "server-a; 3 owners enrolled",
        "rejected: absent 2",
    ]
    assert "clinics\x1b[0m  \x1b[1menrolling: round 0 of 4" in out.getvalue()
    assert "not enrolled yet: ward-3" in out.getvalue()
    assert "server-b is away" in out.getvalue()


def test_a_task_that_hangs_holds_up_no_other_and_is_said_to() -> None:
    end, out = threading.Event(), Terminal()

    def hang() -> dict[str, Any]:
        assert end.wait(60)
        return facts_of(ServerStatus.from_wire(of("c", 4, "done")))

    left = [of("w", n, "training") for n in (0, 1, 2, 3)] + [of("w", 4, "done")] * 100

    def ask() -> dict[str, Any]:
        answer = left.pop(0)
        if answer.phase == "done":
            end.set()
        return facts_of(ServerStatus.from_wire(answer))

    watch(out, {"wards": ask, "clinics": hang}, 5.0, LeapingClock())
    assert "clinics\x1b[0m  \x1b[33masking" in out.getvalue()
    assert "clinics\x1b[0m  \x1b[33mno answer yet" in out.getvalue()
    assert out.screen()[0].startswith("wards  done: round 4 of 4")
    assert "clinics  done: round 4 of 4" in out.screen()


def test_a_terminal_that_is_too_low_for_blocks_gets_a_line_a_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watching, "height_of", lambda _: 8)
    out = Terminal()
    watch(out, {n: asking(of(n, 4, "done")) for n in ("a", "b", "c")}, 5.0, LeapingClock())
    assert out.screen() == [f"{name}  done: round 4 of 4" for name in ("a", "b", "c")]


def test_a_pipe_gets_each_task_s_changes_under_its_name() -> None:
    out = io.StringIO()
    gone = PeerUnavailable("refused")
    asks = {
        "wards": asking(of("w", 4, "done"), of("w", 4, "done")),
        "clinics": asking(gone, of("c", 4, "done")),
    }
    watch(out, asks, 5.0, LeapingClock())
    assert out.getvalue().splitlines() == [
        "wards: server-a, w: done: round 4 of 4; 3 owners enrolled",
        "clinics: no answer (refused); asking again every 5 s",
        "clinics: server-a, c: done: round 4 of 4; 3 owners enrolled",
    ]


def test_a_live_screen_is_no_document(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["status", "127.0.0.1:1", "--identity", str(tmp_path), "--watch", "--json"]
    )
    assert done.exit_code == 2
    assert "choose one of them" in done.output
