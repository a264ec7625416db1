"""What a server says to owners: its statements, which they show again, its notices, its
models."""

import tracemalloc
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.rig.documents import Document
from tests.rig.keys import identity
from tests.rig.meeting import ANN, BEN, A, B, Servers
from tests.rig.tasks import task_with

from precad.aggregator.attempt_states import Opened
from precad.aggregator.rpc import notices
from precad.aggregator.training import session as training
from precad.aggregator.training.model_store import KEPT_MODELS, ModelStore, StoredModel
from precad.aggregator.training.reconcile import remember
from precad.common.errors import NotOnOffer, PeerViolation, Rejection, StorageFailure
from precad.common.identifiers import Digest
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.model import model_digest, unrounded_start
from precad.common.wire.messages import read_notice, sign_body
from precad.protos import precad_pb2 as pb


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What was shown to a server that it didn't just take for its own."""
    seen = Mock(wraps=remember)
    monkeypatch.setattr("precad.aggregator.rpc.notices.remember", seen)
    return seen


def meanwhile(owner: object, name: str, act: Callable[[], object]) -> None:
    """The next call of it finds that this was done just before."""
    call = getattr(owner, name)

    def late(*given: object) -> object:
        setattr(owner, name, call)
        act()
        return call(*given)

    setattr(owner, name, late)


def test_its_last_word_isnt_looked_up(servers: Servers, checked: Mock) -> None:
    """Until a restart."""
    first = notices.statement_of(servers.sessions[A], ANN, shown=None)
    notices.statement_of(
        servers.sessions[A], ANN, shown=pb.Signed.FromString(first.SerializeToString())
    )
    checked.assert_not_called()
    session = servers.restarted(A)
    notices.statement_of(session, ANN, shown=first)
    checked.assert_called_once_with(session, ANN, first.SerializeToString())
    # Of each owner it knows the last one.
    second = notices.statement_of(session, ANN, shown=None)
    third = notices.statement_of(session, ANN, shown=second)
    checked.assert_called_once()
    notices.statement_of(session, ANN, shown=third)
    checked.assert_called_once()
    notices.statement_of(session, ANN, shown=second)
    checked.assert_called_with(session, ANN, second.SerializeToString())
    assert session.last_signed.keys() == {(ANN, pb.StatementBody)}


def test_a_word_that_it_never_said_is_refused(servers: Servers, checked: Mock) -> None:
    """And one to another owner: they are checked."""
    session, of_b = (
        servers.sessions[A],
        notices.statement_of(servers.sessions[B], BEN, shown=None),
    )
    first = notices.statement_of(session, ANN, shown=None)
    other_body = pb.Signed(body=first.body[:-1] + b"\0\1", signature=first.signature)
    other_signature = pb.Signed(
        body=first.body, signature=first.signature[:-1] + b"\0\1"
    )
    for word in (other_body, other_signature):
        word.certificates.extend(first.certificates)
    shown = [(ANN, other_body), (ANN, other_signature), (BEN, first), (BEN, of_b)]
    for client, word in shown:
        with pytest.raises(PeerViolation):
            notices.statement_of(session, client, shown=word)
        checked.assert_called_with(session, client, word.SerializeToString())
    assert checked.call_count == len(shown)


def test_a_statement_signed_while_a_version_ends_counts_none_of_it(
    servers: Servers,
) -> None:
    """Shown after a restart it would count again, and the owner would share nothing
    more."""

    def over(attempt: int) -> None:
        servers.attempt(attempt)
        session.store.versions.confirm(attempt + 1)

    session = servers.sessions[A]
    over(0)
    meanwhile(session.model_store, "get", partial(over, 1))
    shown = notices.statement_of(session, ANN, shown=None)
    assert servers.versions() == (2, 2)
    notices.statement_of(servers.restarted(A), ANN, shown=shown)
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2


def test_a_charge_learned_while_an_owner_shows_it_counts_once(servers: Servers) -> None:
    servers.attempt(0)
    backup = servers.copy(A)
    servers.attempt(1)
    servers.sessions[A].store.versions.confirm(2)
    shown = notices.statement_of(servers.sessions[A], ANN, shown=None)
    servers.put_back(A, backup, journal=True)
    session = servers.sessions[A]
    assert servers.charged() == [{ANN: 1, BEN: 1}, {ANN: 2, BEN: 2}]
    meanwhile(session.store.statements._transaction, "write", servers.mend)
    notices.statement_of(session, ANN, shown=shown)
    assert servers.charged() == [{ANN: 2, BEN: 2}] * 2


def test_what_is_signed_for_an_attempt_lacks_its_own_charge(servers: Servers) -> None:
    """And is of its version."""
    session = servers.sessions[A]
    opened = Opened(
        attempt=0,
        version=0,
        cohort=(ANN,),
        model=session.model_store.current.digest,
        counted=frozenset(),
    )
    inbox = SimpleNamespace(opened=opened, proof_opening=lambda *_: None)
    object.__setattr__(session, "inbox", inbox)
    said = pb.OpeningBody.FromString(notices.opening_of(session, ANN, 0).body)
    assert (said.version, said.charges) == (0, 0)

    def over() -> None:
        servers.attempt(0)
        inbox.opened = None

    meanwhile(session.store.ledger, "charges_in", over)
    with pytest.raises(NotOnOffer):
        notices.opening_of(session, ANN, 0)
    assert servers.charged()[0] == {ANN: 1, BEN: 1}


# --- notices, which have one size, whatever they say: on the wire nobody sees who was
# drawn ------

MODEL = Digest(b"\7" * 32)
SIGNER_A = identity(Principal.service(A))


def words(attempt: int) -> list[pb.Signed]:
    """The longest that a server signs for an owner."""
    names: Document = {"client": "w" * 63, "version": attempt, "attempt": attempt}
    names |= dict.fromkeys(("task_digest", "model_digest"), bytes(32))
    opening = pb.OpeningBody(**names, charges=attempt, opened=attempt)
    statement = pb.StatementBody(**names, charged=[attempt] * 8, counted=True)
    return [
        sign_body(CertificateSigner(SIGNER_A), A, body) for body in (opening, statement)
    ]


def events(attempt: int) -> list[training.Event]:
    drawn = Opened(
        attempt=attempt,
        version=attempt,
        cohort=(ANN, BEN),
        model=MODEL,
        counted=frozenset({ANN}),
    )
    longest = max(Rejection, key=lambda reason: len(reason.value))
    return [
        training.RoundOpened(drawn, 60.0),
        training.RoundDone(
            opened=drawn,
            valid=frozenset({ANN}),
            rejections={},
            model=MODEL,
            most_participations=1,
        ),
        training.RoundDone(
            opened=drawn,
            valid=frozenset(),
            rejections={ANN: longest},
            model=MODEL,
            most_participations=1,
        ),
        training.TrainingDone(attempt, MODEL),
        training.TrainingStopped(),
    ]


@pytest.mark.parametrize("attempt", [0, 300, 2**62])
@pytest.mark.parametrize("room", [0, 2048, 6 * 2048])
def test_every_notice_has_the_same_size_for_everybody(attempt: int, room: int) -> None:
    sizes = {
        len(notices.notice_of(event, client, word, room).SerializeToString())
        for event, client, word in product(
            events(attempt), (ANN, BEN), (None, *words(attempt))
        )
    }
    assert sizes == {notices.NOTICE_BYTES + room}
    # Only who is drawn hears so.
    drawn = [
        notices.notice_of(events(attempt)[0], client).open.selected
        for client in (ANN, BEN)
    ]
    assert drawn == [True, False]


def test_a_servers_word_has_room_and_one_too_long_is_left_for_who_asks() -> None:
    room = notices.word_room(SIGNER_A.cert)
    for word in (*words(0), *words(2**62)):
        assert (
            notices.notice_of(training.TrainingStopped(), ANN, word, room).word == word
        )
        short = notices.notice_of(
            training.TrainingStopped(), ANN, word, word.ByteSize() - 1
        )
        assert not short.HasField("word")
    # One without an event that this version knows is a violation: both sides speak one
    # wire version, and who skipped it would wait for what never comes.
    notice = pb.Notice.FromString(
        pb.Notice(padding=b"x").SerializeToString() + b"\xfa\x06\x01x"
    )
    with pytest.raises(PeerViolation, match="a notice without an event"):
        read_notice(notice)


TASK = task_with({}, 3)


def filled(path: Path, models: int) -> ModelStore:
    model_store = ModelStore(TASK, path)
    for number in range(1, models + 1):
        model_store.put(number, np.full(3, float(number), np.float32))
    return model_store


def vector(model: StoredModel, dtype: str = "<f4") -> list[float]:
    words: list[float] = np.frombuffer(b"".join(model.pieces(7)), dtype).tolist()
    return words


def test_the_newest_models_are_on_offer(tmp_path: Path) -> None:
    model_store = filled(tmp_path / "model", 6)
    assert model_store.current.version == 6
    for number in range(7 - KEPT_MODELS, 7):
        assert vector(model_store.get(number)) == [number] * 3
    for number in (7 - KEPT_MODELS - 1, 7):
        with pytest.raises(NotOnOffer, match=f"model {number} "):
            model_store.get(number)
    # None is that can't be written.
    nowhere = ModelStore(TASK, tmp_path / "gone" / "model")
    with pytest.raises(
        StorageFailure, match=r"gone/model can't be written \(No such file"
    ):
        nowhere.put(1, np.zeros(3))
    assert nowhere.current.version == 0


def test_the_newest_one_is_read_from_disk_and_no_other_file_taken_for_it(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "model", tmp_path / "other"
    filled(other, 4)
    model_store = filled(path, 3)
    assert model_store.theta().tolist() == [3.0] * 3
    # The name may go: what is on offer is open.
    path.unlink()
    assert model_store.theta().tolist() == [3.0] * 3
    again = filled(path, 3)
    path.write_bytes(other.read_bytes())
    with pytest.raises(
        StorageFailure, match="isn't the model 3 that this server wrote"
    ):
        again.theta()
    path.write_bytes(b"")
    with pytest.raises(
        StorageFailure, match=r"model 3 can't be read: .* ends at byte 0 of 12"
    ):
        again.theta()


def test_models_on_offer_take_no_memory_and_a_descriptor_each(tmp_path: Path) -> None:
    def descriptors() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    d = 4 << 20
    model_store, theta = ModelStore(task_with({}, d), tmp_path / "m"), np.ones(d, "f4")
    before = descriptors()
    tracemalloc.start()
    for version in range(1, 5):
        model_store.put(version, theta)
    for version in (3, 4):
        assert (
            sum(len(piece) for piece in model_store.get(version).pieces(1 << 17))
            == 4 * d
        )
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Two vectors were 32 MiB.
    assert held < 1 << 20
    assert descriptors() - before <= KEPT_MODELS


def test_tensors_that_another_program_wrote_in_another_order_are_read(
    tmp_path: Path,
) -> None:
    names = [{"name": name, "shape": [2]} for name in ("b", "a")]
    task = task_with({"model.parameters": names}, 4)
    path, theta = tmp_path / "model", np.arange(4.0, dtype=np.float32)
    ModelStore(task, path).put(1, theta)
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    save_file({"a": theta[2:], "b": theta[:2]}, path, metadata)
    assert path.read_bytes()[-16:] != theta.tobytes()
    model_store = ModelStore(task, path)
    assert model_store.theta().tolist() == theta.tolist() == vector(model_store.current)


def test_a_training_that_began_at_a_float64_start_goes_on_from_it(
    tmp_path: Path,
) -> None:
    """Owners know its digest; whoever heard of it would take part no more from
    another."""
    drawn = {
        "model.initial": "uniform",
        "model.parameters": [{"name": "w", "shape": [2, 2]}],
    }
    task, path = task_with(drawn, 4), tmp_path / "m"
    theta = unrounded_start(task.model)
    known = model_digest(task.digest, 0, task.model.parameters, theta)
    assert ModelStore(task, path, known).theta().tobytes() == theta.tobytes()
    for start in (None, ModelStore(task, path).current.digest):
        assert ModelStore(task, path, start).theta().dtype == np.float32
    # A model keeps its kind of numbers.
    ModelStore(task, path).put(1, theta)
    again = ModelStore(task, path)
    assert vector(again.current, "<f8") == theta.tolist()
    assert again.theta().tobytes() == theta.tobytes()
    assert again.current.digest == model_digest(
        task.digest, 1, task.model.parameters, theta
    )
