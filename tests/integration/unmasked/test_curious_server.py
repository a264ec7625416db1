"""A curious A, then a curious B, with two neighbouring candidates for one client's update.

Neither tells them apart from its whole view. That the noisy sum is a little likelier under one of
them is what differential privacy accounts for: the statistical test leaves the release out.
"""

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression

from precad.common.aggregator.validate.rows import project
from precad.common.encode.clip import squared_norm
from precad.common.identifiers import ClientId, Role
from precad.common.keystream import derive
from precad.common.ring import dot, from_bytes, signed, to_bytes
from precad.common.secret import Secret
from precad.common.task import Task

D = 8
SERVERS = (Role.SERVER_A, Role.SERVER_B)
VICTIM = ClientId("victim")
OTHER = ClientId("other")


def candidates(task: Task) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two valid updates that differ by one record of norm just below R."""
    random = np.random.default_rng(3)
    base = random.integers(-(2**22), 2**22, task.dimension, dtype=np.int64)
    record = random.normal(size=task.dimension)
    record *= 0.999 * 2**task.fractional_bits / np.linalg.norm(record)
    neighbour = base + np.trunc(record).astype(np.int64)
    assert 0 < squared_norm(neighbour - base) <= 2 ** (2 * task.fractional_bits)
    assert max(squared_norm(base), squared_norm(neighbour)) <= task.bound**2
    return base, neighbour


def set_secret(view: Any, task: Task) -> Secret:
    """Both servers know it: from the two contributions that crossed the link."""
    (own,) = view.messages(view.sent, "row-secret")
    (theirs,) = view.messages(view.received, "row-secret")
    a, b = (own, theirs) if view.role is Role.SERVER_A else (theirs, own)
    return derive(Secret(a + b), "row-secret", task.digest.value)


def consequences(view: Any, task: Task, guess: NDArray[np.int64]) -> set[bytes]:
    """All that this server would expect to see somewhere, if the victim's update were ``guess``.

    The other server's share, its parts of the validation, and every digest of them that can be
    made with what this server knows, salted with anything that it has seen.
    """
    place = sorted(view.held).index(VICTIM)
    held = view.held[VICTIM]
    own = view.expanded(VICTIM, task.dimension)
    other = guess - own
    received, sent = (view.opening(place, frames) for frames in (view.received, view.sent))
    own_a, own_r = view.own_triple(place)
    assert (own - own_a == sent).all()
    other_a = other - received
    whole_a = guess - received - sent
    commitments = [held.commitment.value, held.other_commitment.value]
    if view.role is Role.SERVER_B:
        commitments.reverse()
    z = [
        project(
            set_secret(view, task),
            share,
            task.projections,
            task=task.digest,
            attempt=0,
            client=VICTIM,
            commitment_a=commitments[0],
            commitment_b=commitments[1],
        )
        for share in (guess, other)
    ]
    other_r = signed(dot(whole_a, whole_a) - own_r)
    other_y = signed(other_r + 2 * dot(received + sent, other_a))
    vectors = [guess, other, other_a, whole_a, *z]
    numbers = [other_r, other_y, dot(guess, guess), dot(other, other)]
    vectors += [np.array([n], dtype=np.int64) for n in numbers]
    material = [to_bytes(v) for v in vectors]
    header = next(h for h in view.headers if h.context.client == VICTIM)
    salts = [b"", bytes(32), header.salt.reveal(), header.context.nonce, view.dealer_key]
    salts += [*commitments, set_secret(view, task).reveal(), task.digest.value]
    salts += [share for share in view.shares.values() if len(share) == 32]
    contexts = [b"", *(header.context.encoded(role) for role in SERVERS)]
    expected = set()
    for m in material:
        # A vector is recognised by any of its words.
        expected |= {m[i : i + 8] for i in range(0, len(m), 8)}
        for salt in salts:
            expected |= {hashlib.sha256(c + salt + m).digest() for c in contexts}
            expected.add(hashlib.sha256(m + salt).digest())
            expected.add(hmac.digest(salt, m, "sha256"))
    return expected


def recognised(expected: Iterable[bytes], blobs: dict[str, bytes]) -> set[bytes]:
    """Those that are in the view, as bytes or in hexadecimal."""
    everything = b"\0\0".join(blobs.values())
    # Words of a zero or of a small number are everywhere.
    telling = [e for e in expected if len(e.strip(b"\0\xff")) >= 4]
    return {e for e in telling if e in everything or e.hex().encode() in everything}


@pytest.fixture
def task(make_task: Callable[..., Task]) -> Task:
    return make_task(D)


@pytest.mark.parametrize("truth", [0, 1])
@pytest.mark.parametrize("role", SERVERS, ids=["a", "b"])
def test_no_guess_can_be_tested(watch: Any, task: Task, role: Role, truth: int) -> None:
    both = candidates(task)
    watched = watch(task, {VICTIM: both[truth], OTHER: both[0]})
    view = watched.a if role is Role.SERVER_A else watched.b
    blobs = view.blobs() | {"log": watched.log.encode()}
    found = [recognised(consequences(view, task, guess), blobs) for guess in both]
    assert found[0] == found[1] == set()


def share_of_other(view: Any, watched: Any) -> bytes:
    other = watched.b if view is watched.a else watched.a
    return to_bytes(other.expanded(VICTIM, D))


BROKEN: dict[str, Callable[[Any, Any], bytes]] = {
    "plain-digest": lambda view, watched: hashlib.sha256(share_of_other(view, watched)).digest(),
    "digest-in-hexadecimal": lambda view, watched: (
        hashlib.sha256(share_of_other(view, watched)).hexdigest().encode()
    ),
    "commitment-without-salt": lambda view, watched: hashlib.sha256(
        view.headers[0].context.encoded(Role.SERVER_B) + share_of_other(view, watched)
    ).digest(),
    "commitment-with-a-salt-that-both-get": lambda view, watched: hashlib.sha256(
        view.headers[0].context.encoded(Role.SERVER_B)
        + view.headers[0].salt.reveal()
        + share_of_other(view, watched)
    ).digest(),
    "one-word-of-the-other-share": lambda view, watched: share_of_other(view, watched)[16:24],
    "opening-without-mask": lambda view, watched: to_bytes(
        from_bytes(share_of_other(view, watched)) - view.opening(0, view.received)
    ),
}


@pytest.mark.parametrize("role", SERVERS, ids=["a", "b"])
@pytest.mark.parametrize("scheme", list(BROKEN))
def test_the_same_server_breaks_a_careless_scheme(
    watch: Any, task: Task, scheme: str, role: Role
) -> None:
    """The control: one careless message more, and the same test finds the true candidate."""
    both = candidates(task)
    for truth in (0, 1):
        watched = watch(task, {VICTIM: both[truth]})
        view = watched.a if role is Role.SERVER_A else watched.b
        blobs = view.blobs() | {"careless": BROKEN[scheme](view, watched)}
        found = [bool(recognised(consequences(view, task, guess), blobs)) for guess in both]
        assert found == [truth == 0, truth == 1]


# --- by statistics -----------------------------------------------------------------------------

CLIENTS = 60
ROUNDS = 20


def bits(*words: NDArray[np.int64]) -> NDArray[np.float32]:
    data = np.concatenate([w.astype("<i8").view(np.uint8) for w in words])
    return np.unpackbits(data).astype(np.float32)


def features(view: Any, place: int, client: ClientId) -> NDArray[np.float32]:
    """Every bit of the view that is about one client, and of what can be combined of it."""
    own = view.expanded(client, D)
    received, sent = (view.opening(place, frames) for frames in (view.received, view.sent))
    header = next(h for h in view.headers if h.context.client == client)
    words = [own, received, received + sent, own + received, own - received]
    seen = (header.salt.reveal(), header.other_commitment.value, header.context.nonce)
    words += [from_bytes(value) for value in seen]
    # The comparison of the norm: last of the client's 81, in each row of each exchange.
    m = 81 * CLIENTS
    for message in view.messages(view.received, "/compare/"):
        table = from_bytes(message).reshape(-1, m)
        words.append(np.ascontiguousarray(table[:, 81 * place + 80]))
    return bits(*words)


def accuracy(x: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[int, int]:
    """Right guesses on the second half, of a distinguisher that learned on the first."""
    half = len(x) // 2
    model = LogisticRegression(C=0.01, max_iter=200).fit(x[:half], labels[:half])
    right = int((model.predict(x[half:]) == labels[half:]).sum())
    return right, len(x) - half


@pytest.fixture
def samples(
    watch: Any, make_task: Callable[..., Task]
) -> tuple[dict[Role, NDArray[np.float32]], NDArray[np.int64], NDArray[np.float32]]:
    """For each server its view of many clients; which candidate each had; and x itself, in bits."""
    task = make_task(D, {"enrolment.clients": CLIENTS})
    both = candidates(task)
    coin = np.random.default_rng(4)
    seen: dict[Role, list[NDArray[np.float32]]] = {role: [] for role in SERVERS}
    labels, plain = [], []
    names = sorted(ClientId(f"c{i}") for i in range(CLIENTS))
    for _ in range(ROUNDS):
        given = {name: int(coin.integers(2)) for name in names}
        watched = watch(task, {name: both[label] for name, label in given.items()})
        for place, name in enumerate(names):
            labels.append(given[name])
            for view in watched:
                seen[view.role].append(features(view, place, name))
            plain.append(bits(watched.a.expanded(name, D) + watched.b.expanded(name, D)))
    return (
        {role: np.array(rows) for role, rows in seen.items()},
        np.array(labels),
        np.array(plain),
    )


def test_no_server_learns_to_tell_the_candidates_apart(samples: Any) -> None:
    seen, labels, plain = samples
    for role in SERVERS:
        right, total = accuracy(seen[role], labels)
        assert stats.binomtest(right, total, 0.5).pvalue > 1e-5
        # The control: the same distinguisher with the two views put together.
        together = np.concatenate([seen[role], plain], axis=1)
        right, total = accuracy(together, labels)
        assert right / total > 0.95
    # No single bit leans either way (Bonferroni over all of them).
    for role in SERVERS:
        ones = labels == 1
        difference = seen[role][ones].mean(axis=0) - seen[role][~ones].mean(axis=0)
        spread = np.sqrt(0.25 / ones.sum() + 0.25 / (~ones).sum())
        bound = stats.norm.isf(1e-6 / seen[role].shape[1])
        assert np.abs(difference / spread).max() < bound
