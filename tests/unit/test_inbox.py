"""One server's submissions: the first good header of each client counts, the rest has reasons."""

import dataclasses
import itertools
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.rig.collecting import wait_over
from tests.rig.keys import signer, verifier
from tests.rig.submissions import (
    body_of,
    expanded,
    signed_anew,
    upload,
    with_body,
    words_of,
)

from precad.common.aggregator.collect import Inbox
from precad.common.aggregator.collect.inbox import Backlog
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.secret import Secret
from precad.common.share.body import PIECE_BYTES
from precad.common.share.submission import Submission, shard
from precad.common.task import Task

D = 8
MODEL = Digest(b"\2" * 32)
ONE, TWO = ClientId("ward-1"), ClientId("ward-2")


@pytest.fixture(scope="module")
def task(make_task: Any) -> Task:
    made: Task = make_task(D)
    return made


@pytest.fixture(params=[Role.SERVER_A, Role.SERVER_B], ids=["a", "b"])
def role(request: pytest.FixtureRequest) -> Role:
    given: Role = request.param
    return given


@pytest.fixture
def inbox(task: Task, role: Role, tmp_path: Path) -> Inbox:
    inbox = Inbox(role, task, verifier(), tmp_path / "spool")
    inbox.open(3, [TWO, ONE], MODEL, version=2)
    return inbox


def pair_of(task: Task, client: ClientId = ONE, number: int = 3) -> tuple[Submission, Submission]:
    return shard(
        np.arange(task.dimension, dtype=np.int64),
        task=task.digest,
        version=2,
        attempt=number,
        client=client,
        model=MODEL,
        signer=signer(client),
    )


def submission(task: Task, role: Role, client: ClientId = ONE, number: int = 3) -> Submission:
    a, b = pair_of(task, client, number)
    return a if role is Role.SERVER_A else b


def bare(s: Submission) -> Submission:
    """As it comes first: without its body."""
    return dataclasses.replace(s, body=None)


def bound_to(s: Submission, **changes: Any) -> Submission:
    """The header of ``s`` for something else, signed by its client."""
    context = dataclasses.replace(s.context, **changes)
    header = signed_anew(dataclasses.replace(s.header, context=context), signer(ONE))
    return dataclasses.replace(bare(s), header=header)


def progress(inbox: Inbox) -> tuple[int, int]:
    """How many of the open attempt's cohort are held, and the cohort's size."""
    current = inbox._round
    return (0, 0) if current is None else (len(current.held), len(current.cohort))


def spooled(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "spool").iterdir())


def reason_of(call: Any) -> Rejection:
    with pytest.raises(RejectedSubmission) as rejected:
        call()
    return rejected.value.reason


@pytest.mark.parametrize("pieces", [(), (1,), (1, 2, 31), (31, 33), (32,), (0, 0, 5, 5)])
def test_a_complete_upload_is_held_as_it_came(
    task: Task, role: Role, inbox: Inbox, pieces: tuple[int, ...]
) -> None:
    s = submission(task, role)
    upload(inbox, s, pieces)
    assert progress(inbox) == (1, 2)
    held = inbox.close()[ONE]
    assert isinstance(held, Submission)
    assert held.header == s.header
    assert (held.seed, held.salt) == (s.seed, s.salt)
    assert body_of(held) == body_of(s)


def test_what_both_servers_hold_is_the_update(task: Task, tmp_path: Path) -> None:
    x = np.array([-(2**63), 2**63 - 1, 0, 1, -1, 7, 8, 9], dtype=np.int64)
    pair = shard(
        x, task=task.digest, version=2, attempt=0, client=ONE, model=MODEL, signer=signer(ONE)
    )
    total = np.zeros(D, dtype=np.int64)
    for s in pair:
        inbox = Inbox(s.role, task, verifier(), tmp_path)
        inbox.open(0, [ONE], MODEL, version=2)
        upload(inbox, s, (9,))
        held = inbox.close()[ONE]
        assert isinstance(held, Submission)
        total += expanded(held, D)
    assert (total == x).all()


def test_only_the_encrypted_body_touches_the_disk(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    s = submission(task, role)
    upload(inbox, s)
    kept = [path.read_bytes() for path in spooled(tmp_path)]
    if role is Role.SERVER_A:
        assert kept == []
        return
    assert [len(data) for data in kept] == [8 * D + 16]
    for secret in (s.seed.reveal(), s.salt.reveal(), body_of(s)[:32], *np.split(words(s), D)):
        assert bytes(secret) not in kept[0]


def words(s: Submission) -> Any:
    return np.frombuffer(words_of(s), dtype="<i8")


def test_a_body_is_kept_in_memory_where_there_is_no_spool(task: Task, role: Role) -> None:
    inbox = Inbox(role, task, verifier())
    inbox.open(3, [ONE], MODEL, version=2)
    s = submission(task, role)
    upload(inbox, s, (5, 40))
    held = inbox.close()[ONE]
    assert isinstance(held, Submission)
    assert body_of(held) == body_of(s)


def test_a_long_body_comes_back_whole_in_whole_pieces(make_task: Any, tmp_path: Path) -> None:
    size = 2 * PIECE_BYTES // 8 + 3
    task = make_task(size)
    s = submission(task, Role.SERVER_B)
    inbox = Inbox(Role.SERVER_B, task, verifier(), tmp_path)
    # Cuts on, before and after the borders of the chunks on the disk.
    for attempt, cuts in enumerate(
        [(32, 32 + PIECE_BYTES), (31, PIECE_BYTES - 1, PIECE_BYTES + 77), (), (2 * PIECE_BYTES,)]
    ):
        s = submission(task, Role.SERVER_B, number=attempt)
        inbox.open(attempt, [ONE], MODEL, version=2)
        upload(inbox, s, cuts)
        held = inbox.close()[ONE]
        assert isinstance(held, Submission)
        assert [len(piece) for piece in held.body_pieces()] == [PIECE_BYTES, PIECE_BYTES, 24]
        assert body_of(held) == body_of(s)
        inbox.cancel()


def test_the_first_header_is_the_clients_only_one(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    first, second = submission(task, role), submission(task, role)
    early = inbox.start(bare(first))
    # While the first one's body is still on its way.
    assert reason_of(lambda: upload(inbox, second)) is Rejection.DUPLICATE
    early.add(body_of(first))
    early.finish()
    # And once more, when it is held.
    assert reason_of(lambda: upload(inbox, second)) is Rejection.DUPLICATE
    assert len(spooled(tmp_path)) == (0 if role is Role.SERVER_A else 1)
    held = inbox.close()[ONE]
    assert isinstance(held, Submission)
    assert held.header == first.header
    assert (expanded(held, D) == expanded(first, D)).all()


def test_a_second_header_costs_the_first_one_nothing(task: Task, role: Role, inbox: Inbox) -> None:
    first = submission(task, role)
    early = inbox.start(bare(first))
    reason = reason_of(lambda: upload(inbox, submission(task, role)))
    inbox.refuse(3, ONE, reason)
    deadline = time.monotonic() + 0.05
    inbox.wait([ONE], deadline)
    # It was still waited for.
    assert time.monotonic() >= deadline
    early.add(body_of(first))
    early.finish()
    assert isinstance(inbox.close()[ONE], Submission)


def test_a_header_whose_body_broke_off_is_still_the_clients_only_one(
    task: Task, inbox: Inbox, role: Role
) -> None:
    first, second = submission(task, role), submission(task, role)
    inbox.start(bare(first)).abandon()
    assert reason_of(lambda: upload(inbox, second)) is Rejection.DUPLICATE
    upload(inbox, first)
    assert isinstance(inbox.close()[ONE], Submission)


def test_the_same_bytes_again_are_a_retry(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    s = submission(task, role)
    for _ in range(3):
        upload(inbox, s)
    assert len(spooled(tmp_path)) == (0 if role is Role.SERVER_A else 1)
    assert progress(inbox) == (1, 2)
    assert isinstance(inbox.close()[ONE], Submission)


def test_the_same_seed_and_body_under_another_signature_are_no_retry(
    task: Task, role: Role, inbox: Inbox
) -> None:
    """ECDSA signs the same bytes in many ways; the servers compare the signature too."""
    s = submission(task, role)
    upload(inbox, s)
    other = dataclasses.replace(s, header=signed_anew(s.header, signer(ONE)))
    assert other.header.signature != s.header.signature
    assert reason_of(lambda: upload(inbox, other)) is Rejection.DUPLICATE
    held = inbox.close()[ONE]
    assert isinstance(held, Submission)
    assert held.header == s.header


def test_a_clients_bad_try_does_not_spoil_its_good_one(
    task: Task, role: Role, inbox: Inbox
) -> None:
    s = submission(task, role)
    for changes in (
        {"model": Digest(bytes(32))},
        {"attempt": 2},
        {"version": 1},
        {"task": Digest(bytes(32))},
    ):
        reason_of(lambda c=changes: inbox.start(bound_to(s, **c)))
    reason_of(lambda: inbox.start(dataclasses.replace(bare(s), seed=Secret(bytes(32)))))
    upload(inbox, s)
    assert isinstance(inbox.close()[ONE], Submission)


@pytest.mark.parametrize(
    ("changes", "reason", "counted"),
    [
        ({"task": Digest(bytes(32))}, Rejection.WRONG_TASK, Rejection.ABSENT),
        ({"attempt": 2}, Rejection.WRONG_ATTEMPT, Rejection.ABSENT),
        ({"attempt": 4}, Rejection.WRONG_ATTEMPT, Rejection.ABSENT),
        ({"attempt": 2**62}, Rejection.WRONG_ATTEMPT, Rejection.ABSENT),
        ({"version": 1}, Rejection.WRONG_ATTEMPT, Rejection.WRONG_ATTEMPT),
        ({"version": 3}, Rejection.WRONG_ATTEMPT, Rejection.WRONG_ATTEMPT),
        ({"model": Digest(bytes(32))}, Rejection.WRONG_MODEL, Rejection.WRONG_MODEL),
        ({"client": ClientId("stranger")}, Rejection.NOT_SELECTED, Rejection.ABSENT),
    ],
)
def test_what_is_bound_to_something_else_is_rejected_with_its_reason(
    task: Task,
    role: Role,
    inbox: Inbox,
    tmp_path: Path,
    changes: dict[str, Any],
    reason: Rejection,
    counted: Rejection,
) -> None:
    bound = bound_to(submission(task, role), **changes)
    assert reason_of(lambda: inbox.start(bound)) is reason
    assert spooled(tmp_path) == []
    # Nobody else is touched.
    upload(inbox, submission(task, role, TWO))
    closed = inbox.close()
    assert closed[ONE] is counted
    assert isinstance(closed[TWO], Submission)
    assert set(closed) == {ONE, TWO}


def test_a_seed_of_another_commitment_is_malformed_before_a_byte_is_taken(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    s = bare(submission(task, role))
    for change in ({"seed": Secret.random()}, {"salt": Secret.random()}):
        other: Any = dataclasses.replace(s, **change)  # type: ignore[arg-type]
        assert reason_of(lambda o=other: inbox.start(o)) is Rejection.MALFORMED
    assert spooled(tmp_path) == []
    assert inbox.close()[ONE] is Rejection.MALFORMED


def test_the_other_servers_submission_is_malformed_here(
    task: Task, role: Role, inbox: Inbox
) -> None:
    a, b = pair_of(task)
    theirs = b if role is Role.SERVER_A else a
    assert reason_of(lambda: inbox.start(dataclasses.replace(bare(theirs), role=role))) is (
        Rejection.MALFORMED
    )


def test_a_bad_signature_is_found_before_a_byte_is_taken(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    s = bare(submission(task, role))
    signature = submission(task, role).header.signature
    header = dataclasses.replace(s.header, signature=signature)
    other = dataclasses.replace(s, header=header)
    assert reason_of(lambda: inbox.start(other)) is Rejection.BAD_SIGNATURE
    assert spooled(tmp_path) == []
    assert inbox.close()[ONE] is Rejection.BAD_SIGNATURE


@pytest.mark.parametrize("at", [0, 31, 32, -1])
def test_a_body_that_was_not_signed_is_malformed_and_leaves_nothing(
    task: Task, tmp_path: Path, at: int
) -> None:
    inbox = Inbox(Role.SERVER_B, task, verifier(), tmp_path / "spool")
    inbox.open(3, [ONE], MODEL, version=2)
    s = submission(task, Role.SERVER_B)
    body = bytearray(body_of(s))
    body[at] ^= 1
    assert reason_of(lambda: upload(inbox, with_body(s, bytes(body)))) is Rejection.MALFORMED
    assert spooled(tmp_path) == []
    assert inbox.close()[ONE] is Rejection.ABSENT


def test_server_a_takes_no_body(task: Task) -> None:
    inbox = Inbox(Role.SERVER_A, task, verifier())
    inbox.open(3, [ONE], MODEL, version=2)
    taking = inbox.start(submission(task, Role.SERVER_A))
    assert reason_of(lambda: taking.add(b"\0")) is Rejection.MALFORMED
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert inbox.close()[ONE] is Rejection.ABSENT


@pytest.mark.parametrize("sent", [0, 31, 32, -1])
def test_a_truncated_upload_is_rejected_and_leaves_nothing(
    task: Task, tmp_path: Path, sent: int
) -> None:
    inbox = Inbox(Role.SERVER_B, task, verifier(), tmp_path / "spool")
    inbox.open(3, [ONE, TWO], MODEL, version=2)
    s = submission(task, Role.SERVER_B)
    taking = inbox.start(bare(s))
    taking.add(body_of(s)[:sent])
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert not taking.complete
    assert spooled(tmp_path) == []
    assert progress(inbox) == (0, 2)
    # The same bytes, whole this time, are welcome.
    upload(inbox, s)
    assert isinstance(inbox.close()[ONE], Submission)


def test_a_longer_upload_is_cut_off_at_once(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    s = submission(task, role)
    taking = inbox.start(bare(s))
    taking.add(body_of(s))
    assert reason_of(lambda: taking.add(b"\0")) is Rejection.MALFORMED
    assert spooled(tmp_path) == []
    # Its end, should it come, doesn't bring it back.
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert inbox.close()[ONE] is Rejection.ABSENT


@pytest.mark.parametrize("sent", [0, 5, None])
def test_an_abandoned_upload_leaves_no_file_and_can_not_be_finished(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path, sent: int | None
) -> None:
    s = submission(task, role)
    taking = inbox.start(bare(s))
    taking.add(body_of(s)[:sent])
    taking.abandon()
    taking.abandon()
    assert spooled(tmp_path) == []
    assert reason_of(taking.finish) is Rejection.TRUNCATED
    assert reason_of(lambda: taking.add(b"")) is Rejection.TRUNCATED
    assert inbox.close()[ONE] is Rejection.ABSENT


def test_an_upload_that_ends_after_the_round_is_too_late(
    task: Task, role: Role, inbox: Inbox, tmp_path: Path
) -> None:
    s = submission(task, role)
    taking = inbox.start(bare(s))
    taking.add(body_of(s))
    assert inbox.close()[ONE] is Rejection.ABSENT
    assert reason_of(taking.finish) is Rejection.WRONG_ATTEMPT
    assert spooled(tmp_path) == []
    inbox.open(4, [ONE], MODEL, version=2)
    assert reason_of(lambda: upload(inbox, s)) is Rejection.WRONG_ATTEMPT
    assert inbox.close()[ONE] is Rejection.ABSENT


def test_no_round_is_open_before_and_after(task: Task, role: Role) -> None:
    inbox = Inbox(role, task, verifier())
    assert progress(inbox) == (0, 0)
    s = submission(task, role)
    assert reason_of(lambda: upload(inbox, s)) is Rejection.WRONG_ATTEMPT
    inbox.open(3, [ONE], MODEL, version=2)
    inbox.close()
    assert reason_of(lambda: upload(inbox, s)) is Rejection.WRONG_ATTEMPT


def test_what_is_found_outside_is_counted_once_and_for_members_only(inbox: Inbox) -> None:
    inbox.refuse(3, ONE, Rejection.TRUNCATED)
    inbox.refuse(3, ONE, Rejection.MALFORMED)
    inbox.refuse(2, TWO, Rejection.TRUNCATED)
    inbox.refuse(3, ClientId("stranger"), Rejection.TRUNCATED)
    assert dict(inbox.close()) == {ONE: Rejection.TRUNCATED, TWO: Rejection.ABSENT}
    inbox.refuse(3, ONE, Rejection.TRUNCATED)


def test_files_of_a_process_that_died_are_removed(task: Task, tmp_path: Path) -> None:
    left_over = tmp_path / "ward-1-00.body"
    left_over.write_bytes(b"x")
    kept = tmp_path / "other.txt"
    kept.write_bytes(b"x")
    Inbox(Role.SERVER_B, task, verifier(), tmp_path)
    assert not left_over.exists()
    assert kept.exists()


def test_discarding_removes_the_file(task: Task, role: Role, inbox: Inbox, tmp_path: Path) -> None:
    upload(inbox, submission(task, role))
    held = inbox.close()[ONE]
    assert isinstance(held, Submission)
    held.discard()
    held.discard()
    assert spooled(tmp_path) == []


def test_the_backlog_is_the_most_that_lay_there_and_is_known_when_collection_has_closed(
    task: Task, role: Role, inbox: Inbox
) -> None:
    upload(inbox, submission(task, role))
    assert len(inbox.arrivals()) == 1
    upload(inbox, submission(task, role, TWO))
    assert inbox.backlog == Backlog()
    inbox.close()
    # Each was asked for before the next one came; bodies stay, and server A has none.
    assert inbox.backlog == Backlog(1, 0 if role is Role.SERVER_A else 2 * 8 * D)
    inbox.open(4, [TWO, ONE], MODEL, version=2)
    inbox.close()
    assert inbox.backlog == Backlog()


# --- waiting -----------------------------------------------------------------------------------


def test_waiting_ends_when_all_are_held(task: Task, role: Role, inbox: Inbox) -> None:
    def send() -> None:
        for client in (ONE, TWO):
            upload(inbox, submission(task, role, client))

    sender = threading.Thread(target=send)
    sender.start()
    deadline = time.monotonic() + 30
    inbox.wait([ONE, TWO], deadline)
    assert time.monotonic() < deadline
    assert progress(inbox) == (2, 2)
    sender.join()


def test_nobody_waits_for_who_has_gone(task: Task, role: Role, inbox: Inbox) -> None:
    upload(inbox, submission(task, role))
    deadline = time.monotonic() + 30
    wait_over(inbox, [ONE, TWO], deadline, gone=lambda client: client == TWO)
    assert time.monotonic() < deadline
    assert inbox.close()[TWO] is Rejection.ABSENT


def test_nobody_waits_for_who_sent_something_wrong(task: Task, role: Role, inbox: Inbox) -> None:
    upload(inbox, submission(task, role))
    wrong = dataclasses.replace(bare(submission(task, role, TWO)), seed=Secret(bytes(32)))
    assert reason_of(lambda: inbox.start(wrong)) is Rejection.MALFORMED
    deadline = time.monotonic() + 30
    inbox.wait([ONE, TWO], deadline)
    assert time.monotonic() < deadline
    # It may still mend its upload before the round closes.
    upload(inbox, submission(task, role, TWO))
    assert isinstance(inbox.close()[TWO], Submission)


def test_a_client_whose_link_broke_is_waited_for(inbox: Inbox) -> None:
    inbox.refuse(3, ONE, Rejection.TRUNCATED)
    deadline = time.monotonic() + 0.05
    inbox.wait([ONE], deadline)
    assert time.monotonic() >= deadline


def test_a_client_that_goes_while_it_is_waited_for_is_noticed(inbox: Inbox) -> None:
    gone = threading.Event()
    threading.Timer(0.05, gone.set).start()
    deadline = time.monotonic() + 30
    wait_over(inbox, [ONE], deadline, gone=lambda _: gone.is_set())
    assert time.monotonic() < deadline


def test_waiting_ends_at_the_deadline(inbox: Inbox) -> None:
    deadline = time.monotonic() + 0.05
    inbox.wait([ONE], deadline)
    assert time.monotonic() >= deadline
    assert progress(inbox) == (0, 2)


def test_many_threads_upload_at_once(task: Task, role: Role, tmp_path: Path) -> None:
    """Of each client's different submissions one is held, all others are duplicates."""
    clients = [ClientId(f"c{i}") for i in range(12)]
    tries = 4
    inbox = Inbox(role, task, verifier(), tmp_path / "spool")
    inbox.open(3, clients, MODEL, version=2)
    start = threading.Barrier(len(clients) * tries)
    outcomes: list[tuple[ClientId, Submission, Rejection | None]] = []

    def send(client: ClientId) -> None:
        s = submission(task, role, client)
        start.wait()
        try:
            upload(inbox, s, range(1, 32 + 8 * D))
            outcomes.append((client, s, None))
        except RejectedSubmission as rejected:
            outcomes.append((client, s, rejected.reason))

    threads = [threading.Thread(target=send, args=[c]) for c in clients for _ in range(tries)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    closed = inbox.close()
    for client in clients:
        of_client = [(s, reason) for c, s, reason in outcomes if c == client]
        taken = [s for s, reason in of_client if reason is None]
        assert len(taken) == 1
        assert [r for _, r in of_client if r].count(Rejection.DUPLICATE) == tries - 1
        held = closed[client]
        assert isinstance(held, Submission)
        assert held.header == taken[0].header
        assert (expanded(held, D) == expanded(taken[0], D)).all()
    assert len(spooled(tmp_path)) == (0 if role is Role.SERVER_A else len(clients))


def test_neither_held_nor_logs_show_seed_salt_or_body(
    task: Task, role: Role, inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    s = submission(task, role)
    upload(inbox, s)
    held = inbox.close()[ONE]
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("t").info("%s %r", held, bare(s))
    for secret in filter(None, (s.seed.reveal(), s.salt.reveal(), body_of(s), words_of(s))):
        assert secret.hex() not in caplog.text
        assert repr(secret)[2:-1] not in caplog.text


def test_an_arrival_costs_the_same_however_many_are_awaited(task: Task, tmp_path: Path) -> None:
    names = [ClientId(f"ward-{number:03d}") for number in range(200)]
    inbox = Inbox(Role.SERVER_A, task, verifier(), tmp_path / "spool")
    inbox.open(3, names, MODEL, version=2)
    asked = itertools.count()

    def gone(_client: ClientId) -> bool:
        next(asked)
        return False

    def arrive() -> None:
        for name in names:
            upload(inbox, submission(task, Role.SERVER_A, name))

    thread = threading.Thread(target=arrive)
    thread.start()
    looks = wait_over(inbox, names, time.monotonic() + 60, gone)
    thread.join()
    assert next(asked) <= looks


def test_waiting_ends_when_the_last_one_is_refused(inbox: Inbox, task: Task, role: Role) -> None:
    upload(inbox, submission(task, role, ONE))
    thread = threading.Timer(0.05, inbox.refuse, (3, TWO, Rejection.MALFORMED))
    thread.start()
    started = time.monotonic()
    inbox.wait([ONE, TWO], time.monotonic() + 60)
    thread.join()
    assert time.monotonic() - started < 30
