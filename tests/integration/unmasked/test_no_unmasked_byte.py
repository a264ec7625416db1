"""No server, stored file or log line ever holds a word of an update."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.rounds import no_noise
from tests.rig.views import Watched

from precad.common.identifiers import ClientId
from precad.common.ring import squared_norm, to_bytes
from precad.common.task import Task

VICTIM = ClientId("victim")
OTHERS = [ClientId("other-1"), ClientId("other-2")]


def update(seed: int, d: int = 8) -> NDArray[np.int64]:
    """Valid, and with no small entry, so that none of its words is seen by chance."""
    random = np.random.default_rng(seed)
    sign = random.choice([-1, 1], d)
    return sign * random.integers(2**20, 2**22, d, dtype=np.int64)


def traces(x: NDArray[np.int64], bits: int = 20) -> dict[bytes, str]:
    """Each word of ``x`` in every form in which it might be written down."""
    found: dict[bytes, str] = {}
    for value in x.tolist():
        word = value.to_bytes(8, "little", signed=True)
        found |= {
            word: "little-endian",
            word[::-1]: "big-endian",
            word.hex().encode(): "hexadecimal",
            word[::-1].hex().encode(): "big-endian hexadecimal",
            str(abs(value)).encode(): "decimal",
            repr(abs(value) * 2.0**-bits).encode(): "real",
            np.float64(value * 2.0**-bits).tobytes(): "float64",
            repr(word)[2:-1].encode(): "escaped",
        }
    return found


def seen(x: NDArray[np.int64], data: bytes) -> set[str]:
    return {name for form, name in traces(x).items() if form in data}


def shown(updates: Iterable[NDArray[np.int64]], blobs: dict[str, bytes]) -> list[tuple[str, Any]]:
    return [(name, found) for x in updates for name, b in blobs.items() if (found := seen(x, b))]


@pytest.fixture(scope="module")
def task(make_task: Callable[..., Task]) -> Task:
    """Its noise is some 2^48 units: a word of a release is an update's in one of 10^12 rounds.

    By chance, that is; with a task's usual noise, of 2^21 units, it is in one of 10^4.
    """
    return make_task(8, {"privacy.noise_multiplier": 2e8})


@pytest.fixture(scope="module")
def alone(watch: Any, task: Task) -> Watched:
    played: Watched = watch(task, {VICTIM: update(1)})
    return played


def test_nothing_that_a_server_receives_or_stores_or_logs_shows_a_word(
    watch: Any, task: Task, capfd: pytest.CaptureFixture[str]
) -> None:
    updates = {VICTIM: update(1), OTHERS[0]: update(2), OTHERS[1]: update(3)}
    assert all(squared_norm(x) <= task.bound**2 for x in updates.values())
    watched = watch(task, updates)
    for view in watched:
        assert view.outcome.valid == tuple(sorted(updates))
        blobs = view.blobs()
        # The view is whole: uploads, bodies, comparisons, randomness, files.
        for part in ("share of victim", "dealer key", "triple 0 2", "file state.db (end)"):
            assert part in blobs
        for part, least in (("row key", 3), ("share of r", 3), ("body/", 9), ("decide/0/", 30)):
            assert sum(part in name for name in blobs) >= least
        blobs["log"] = watched.log.encode()
        blobs["output"] = "".join(capfd.readouterr()).encode()
        # What is released, too: with its noise it is no update and no sum of them.
        blobs["release"] = to_bytes(view.outcome.noisy_sum) + view.outcome.theta.tobytes()
        total = np.sum(list(updates.values()), axis=0)
        assert shown((*updates.values(), total, total - updates[VICTIM]), blobs) == []
    assert "INSERT INTO charge" in watched.log
    # The dealer, with what it may come across besides.
    blobs = watched.dealer.blobs(8) | watched.within_reach()
    assert shown(updates.values(), blobs) == []


def test_the_search_finds_what_is_there(watch: Any, task: Task) -> None:
    """The control: the same search, where a word does show."""
    x = update(1)
    for written in (
        b"..." + to_bytes(x)[24:40] + b"...",
        str(x.tolist()).encode(),
        str((x * 2.0**-20).tolist()).encode(),
        to_bytes(x).hex().encode(),
        (x * 2.0**-20).tobytes(),
        repr(to_bytes(x)).encode(),
        x[3:4].astype(">i8").tobytes(),
    ):
        assert seen(x, written)
    # Without noise a lone client's update is what the round releases; without A's mask it is B's
    # share. Both are found.
    watched = watch(task, {VICTIM: x}, noise=no_noise)
    assert seen(x, to_bytes(watched.a.outcome.noisy_sum))
    both = watched.a.expanded(VICTIM, 8) + watched.b.expanded(VICTIM, 8)
    assert seen(x, to_bytes(both))


def test_what_is_on_the_disk_while_a_round_is_open_and_after_it(alone: Watched) -> None:
    """B's body alone, as long as it is, and under a key: no word of it, nor its salt, shows."""
    salt, b = alone.b.body(VICTIM)
    bodies = {name: data for name, data in alone.b.stored.items() if ".body" in name}
    # A's seed is never written; B's body is gone after the round.
    assert not [name for name in alone.a.stored if ".body" in name]
    found = [(name.endswith(".body"), len(data)) for name, data in bodies.items()]
    assert found == [(True, 8 * b.size + 16)]
    openings = [s.reveal() for v in alone for s in (v.held[VICTIM].seed, v.held[VICTIM].salt)]
    words = [to_bytes(b[i : i + 1]) for i in range(b.size)]
    for view in alone:
        kept = b"\0".join(view.stored.values())
        secrets = [*words, salt, view.dealer_key, *view.row_keys.values(), *openings]
        assert not [secret for secret in secrets if secret in kept]
        # The share that stays there is the one that is sent, no longer the bare sum of shares.
        (sent,) = view.messages(view.sent, "noisy-share")
        assert any(sent in d for n, d in view.stored.items() if n.endswith("(end)"))
        assert sent != to_bytes(view.expanded(VICTIM, 8))


def test_no_server_gets_what_is_meant_for_the_other(watch: Any, task: Task) -> None:
    watched = watch(task, {VICTIM: update(1), OTHERS[0]: update(2)})
    for view, other in ((watched.a, watched.b), (watched.b, watched.a)):
        own = b"\0".join(view.blobs().values())
        beginnings = {own[i : i + 8] for i in range(len(own))}
        secrets = [other.dealer_key]
        secrets += [to_bytes(np.array([share])) for share in other.shares_of_r.values()]
        for client, held in other.held.items():
            secrets += [held.seed.reveal(), held.salt.reveal()]
            secrets += [to_bytes(other.mask(client, 8)), to_bytes(other.expanded(client, 8))]
        # Not a and b: where a share is a word of zeros, its mask crosses bare, unrecognisably.
        secrets += [to_bytes(triple.c.reshape(-1)) for triple in other.triples()]
        for secret in secrets:
            assert secret not in own
            # Nor a part of it.
            words = [secret[i : i + 8] for i in range(0, len(secret) - 7, 8)]
            assert not beginnings.intersection(words)


def test_no_log_line_shows_a_share_a_seed_or_a_salt(alone: Watched) -> None:
    for view in alone:
        held = view.held[VICTIM]
        secrets = [view.shares[VICTIM], view.dealer_key, *view.row_keys.values()]
        secrets += [held.seed.reveal(), held.salt.reveal()]
        secrets += [to_bytes(np.array([share])) for share in view.shares_of_r.values()]
        for secret in secrets:
            for start in range(0, len(secret) - 7, 8):
                piece = secret[start : start + 8]
                assert not [p for p in (piece.hex(), repr(piece)[2:-1]) if p in alone.log]
        text = repr((view.held, view.received, view.outcome, alone.dealer.asked))
        for secret in secrets:
            assert not [p for p in (secret.hex()[:16], repr(secret[:8])[2:-1]) if p in text]
