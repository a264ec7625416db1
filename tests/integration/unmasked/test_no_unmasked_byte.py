"""No server, stored file or log line ever holds a word of an update; shares are
uniform."""

from collections import defaultdict
from collections.abc import Iterable
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.conftest import small_task
from tests.integration.unmasked.conftest import Watch
from tests.rig import rounds, submissions
from tests.rig.keys import signer

from precad.common.fixed_point import squared_norm
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import dot, from_bytes, signed, to_bytes
from precad.common.submission import SubmissionContext, shard
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import Answer, SquareRequest

D = 8
VICTIM = ClientId("victim")
OTHERS = [ClientId("other-1"), ClientId("other-2")]


def update(seed: int) -> NDArray[np.int64]:
    """Valid, and with no small entry, so that none of its words is seen by chance."""
    random = np.random.default_rng(seed)
    sign = random.choice([-1, 1], D)
    return sign * random.integers(2**20, 2**22, D, dtype=np.int64)


def seen(x: NDArray[np.int64], data: bytes, bits: int = 20) -> set[str]:
    """The forms in which a word of ``x`` is written down in ``data``."""
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
    return {name for form, name in found.items() if form in data}


def require_unseen(
    updates: Iterable[NDArray[np.int64]], blobs: dict[str, bytes]
) -> None:
    found = [(name, seen(x, data)) for x in updates for name, data in blobs.items()]
    assert [each for each in found if each[1]] == []


TASK = small_task(D, {"privacy.noise_multiplier": 2e8})
"""Its noise is some 2^48 units: a word of a release is an update's in one of 10^12
rounds.

By chance, that is; with a task's usual noise, of 2^21 units, it is in one of 10^4."""


def test_nothing_kept_or_logged_shows_a_word(
    watch: Watch, capfd: pytest.CaptureFixture[str]
) -> None:
    updates = {VICTIM: update(1), OTHERS[0]: update(2), OTHERS[1]: update(3)}
    assert all(squared_norm(x) <= TASK.mechanism.bound**2 for x in updates.values())
    watched = watch(TASK, updates)
    for view in watched:
        assert view.outcome is not None
        assert view.outcome.valid == tuple(sorted(updates))
        blobs = view.blobs()
        # The view is whole: uploads, bodies, comparisons, randomness, files.
        for part in (
            "share of victim",
            "dealer key",
            "triple 0 2",
            "file state.db (end)",
        ):
            assert part in blobs
        for part, least in (
            ("row key", 3),
            ("share of r", 3),
            ("body/", 9),
            ("decide/0/", 30),
        ):
            assert sum(part in name for name in blobs) >= least
        blobs["log"] = watched.log.encode()
        blobs["output"] = "".join(capfd.readouterr()).encode()
        # What is released, too: with its noise it is no update and no sum of them.
        blobs["release"] = (
            to_bytes(view.outcome.noisy_sum) + view.outcome.theta.tobytes()
        )
        total = np.sum(list(updates.values()), axis=0)
        require_unseen((*updates.values(), total, total - updates[VICTIM]), blobs)
    assert "INSERT INTO charge" in watched.log
    # The dealer, with what it may come across besides.
    require_unseen(updates.values(), watched.dealer.blobs(8) | watched.within_reach())


def test_the_search_finds_what_is_there(watch: Watch) -> None:
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
    # Without noise a lone client's update is what the round releases; without A's mask
    # it is B's share. Both are found.
    watched = watch(TASK, {VICTIM: x}, noise=rounds.no_noise)
    assert watched.a.outcome is not None
    assert seen(x, to_bytes(watched.a.outcome.noisy_sum))
    both = watched.a.expanded(VICTIM, 8) + watched.b.expanded(VICTIM, 8)
    assert seen(x, to_bytes(both))


def test_what_is_on_the_disk_while_a_round_is_open_and_after_it_and_in_the_log(
    watch: Watch,
) -> None:
    """B's body alone, as long as it is, and under a key: no word of it, nor its salt,
    shows."""
    alone = watch(TASK, {VICTIM: update(1)})
    salt, b = alone.b.body(VICTIM)
    bodies = {name: data for name, data in alone.b.stored.items() if ".body" in name}
    # A's seed is never written; B's body is gone after the round.
    assert not [name for name in alone.a.stored if ".body" in name]
    found = [(name.endswith(".body"), len(data)) for name, data in bodies.items()]
    assert found == [(True, 8 * b.size + 16)]
    openings = [
        s.reveal() for v in alone for s in (v.held[VICTIM].seed, v.held[VICTIM].salt)
    ]
    words = [to_bytes(b[i : i + 1]) for i in range(b.size)]
    for view in alone:
        kept = b"\0".join(view.stored.values())
        keys = [view.dealer_key, *view.row_keys.values(), *openings]
        assert not [secret for secret in (*words, salt, *keys) if secret in kept]
        # The share that stays there is the one that is sent, no longer the bare sum of
        # shares.
        (sent,) = view.messages(view.sent, "noisy-share")
        assert any(sent in d for n, d in view.stored.items() if n.endswith("(end)"))
        assert sent != to_bytes(view.expanded(VICTIM, 8))
        # No log line shows a share, a seed or a salt, nor does a repr.
        secrets = [view.shares[VICTIM], *keys]
        secrets += [to_bytes(np.array([share])) for share in view.shares_of_r.values()]
        pieces = {
            s[start : start + 8] for s in secrets for start in range(0, len(s) - 7, 8)
        }
        shown = [
            form
            for p in pieces
            for form in (p.hex(), repr(p)[2:-1])
            if form in alone.log
        ]
        assert shown == []
        text = repr((view.held, view.received, view.outcome, alone.dealer.asked))
        forms = [form for s in secrets for form in (s.hex()[:16], repr(s[:8])[2:-1])]
        assert [form for form in forms if form in text] == []


def test_no_server_gets_what_is_meant_for_the_other(watch: Watch) -> None:
    watched = watch(TASK, {VICTIM: update(1), OTHERS[0]: update(2)})
    for view, other in ((watched.a, watched.b), (watched.b, watched.a)):
        own = b"\0".join(view.blobs().values())
        beginnings = {own[i : i + 8] for i in range(len(own))}
        secrets = [other.dealer_key]
        secrets += [to_bytes(np.array([share])) for share in other.shares_of_r.values()]
        for client, held in other.held.items():
            secrets += [held.seed.reveal(), held.salt.reveal()]
            secrets += [
                to_bytes(other.mask(client, 8)),
                to_bytes(other.expanded(client, 8)),
            ]
        # Not a and b: where a share is a word of zeros, its mask crosses bare,
        # unrecognisably.
        secrets += [to_bytes(triple.c.reshape(-1)) for triple in other.triples()]
        for secret in secrets:
            assert secret not in own
            # Nor a part of it.
            words = [secret[i : i + 8] for i in range(0, len(secret) - 7, 8)]
            assert not beginnings.intersection(words)


RUNS = 4000
LEAST_P = 1e-10
"""Of some 4,000 fits: a false alarm in one of 10^6 runs.

Of 32,000 words it tells nine times in ten where one value of a byte comes 2.4 times as
often as it should, where one half of a byte's values comes 9 % too often, or a pair of
bits 5 %."""
CLIENT = ClientId("ward-1")
DIGEST = Digest(b"\1" * 32)
UPDATES = {
    "zero": np.zeros(D, dtype=np.int64),
    "wild": np.array(
        [-(2**63), 2**63 - 1, 2**32, -1, 0, 1, 2**62, -(2**40)], dtype=np.int64
    ),
}


def even(values: NDArray[np.integer], bins: int) -> float:
    return float(stats.chisquare(np.bincount(values, minlength=bins)).pvalue)


def bytes_fit(words: NDArray[np.int64]) -> float:
    """Least p over the eight byte positions of a word, each against 256 equal bins."""
    table = np.ascontiguousarray(words, "<i8").view(np.uint8).reshape(-1, 8)
    return min(even(table[:, i], 256) for i in range(8))


def fit(words: NDArray[np.int64]) -> float:
    """Least p, also over neighbouring bits: no bit depends on the next."""
    bits = np.unpackbits(words.astype("<i8").view(np.uint8).reshape(-1, 8), axis=1)
    pairs = 2 * bits[:, :-1] + bits[:, 1:]
    return min(bytes_fit(words), *(even(pairs[:, i], 4) for i in range(63)))


def independent(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """p of the top three bits of each being a pair of coins' outcomes."""
    a, b = (
        (
            np.ascontiguousarray(each).reshape(-1).view(np.uint64) >> np.uint64(61)
        ).astype(int)
        for each in (one, other)
    )
    return even(8 * a + b, 64)


Shares = dict[str, NDArray[np.int64]]


@pytest.fixture(scope="module", params=list(UPDATES))
def shares(request: pytest.FixtureRequest) -> Shares:
    """Of one update shared again and again: what each party has of it, ``[runs,
    n]``."""
    x = UPDATES[request.param]
    seen: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    pen, dealer = signer(CLIENT), DealerRole(DIGEST, D)
    for _ in range(RUNS):
        pair = shard(
            x,
            SubmissionContext(
                task=DIGEST, version=0, attempt=0, client=CLIENT, model=DIGEST
            ),
            pen,
        )
        a_a, a_b = (each.mask().words(D) for each in pair)
        b = from_bytes(submissions.words_of(pair[1]))
        assert (b + a_a + a_b == x).all()
        (key_a, r_a), (key_b, r_b) = squared(dealer, pair)
        assert (key_a, signed(r_a + r_b)) == (key_b, dot(a_a + a_b, a_a + a_b))
        secrets = [each.seed.reveal() + each.salt.reveal() for each in pair]
        row = {"a_A": a_a, "a_B": a_b, "b": b, "b + a_B": b + a_b}
        row |= {"r_A": np.array([r_a]), "r_B": np.array([r_b])}
        told = {
            "seeds and salts": b"".join(secrets),
            "salt_h": submissions.body_of(pair[1])[:32],
        }
        told |= {"nonce": pair[0].context.nonce, "row key": key_a.reveal()}
        for name, words in (
            row | {name: from_bytes(data) for name, data in told.items()}
        ).items():
            seen[name].append(words)
    return {name: np.array(rows) for name, rows in seen.items()}


def squared(dealer: DealerRole, pair: submissions.Pair) -> list[tuple[Secret, int]]:
    """What the dealer answers A and B about a submission: a row key and a share of r
    each."""
    told: dict[Role, list[Answer]] = defaultdict(list)
    for each in pair:
        header, ctx = each.header, each.context.digest.value
        c_a, c_b = header.commitment_a.value, header.commitment_b.value
        half = SquareRequest(
            task=DIGEST,
            attempt=0,
            context=ctx,
            commitment_a=c_a,
            commitment_b=c_b,
            seed=each.seed,
            salt=each.salt,
        )

        def deliver(_: bytes, answer: Answer, role: Role = each.role) -> None:
            told[role].append(answer)

        if work := dealer.ask(each.role, half, deliver):
            work()
    both = (
        sorted(told[each.role], key=lambda answer: isinstance(answer, int))
        for each in pair
    )
    return [cast("tuple[Secret, int]", tuple(each)) for each in both]


SHARES = ["a_A", "a_B", "b", "b + a_B", "r_A", "r_B"]
"""The first two and the last two are one server's each; of b A sees what B sees."""


@pytest.mark.parametrize(
    "share", [*SHARES, "seeds and salts", "salt_h", "nonce", "row key"]
)
def test_each_share_alone_is_uniform(shares: Shares, share: str) -> None:
    words = shares[share]
    # Each coordinate by itself too, and no share twice.
    assert min(fit(words), *(bytes_fit(coordinate) for coordinate in words.T)) > LEAST_P
    assert np.unique(words).size == words.size
    # Nor do neighbouring coordinates and neighbouring runs depend on each other.
    for one, other in ((words[:, :-1], words[:, 1:]), (words[:-1], words[1:])):
        if share in SHARES and one.size:
            assert independent(one, other) > LEAST_P


def test_what_one_party_holds_together_is_uniform_together(shares: Shares) -> None:
    """b with one mask is as good as alone; also their sums and differences are
    uniform."""
    b, whole = shares["b"], shares["a_A"] + shares["a_B"]
    for own, r in ((shares["a_A"], shares["r_A"]), (shares["a_B"], shares["r_B"])):
        assert min(fit(b + own), fit(b - own), independent(own, b)) > LEAST_P
        assert min(independent(r, own[:, 0]), independent(r, b[:, 0])) > LEAST_P
    # And the dealer both masks.
    assert min(bytes_fit(whole), independent(shares["a_A"], shares["a_B"])) > LEAST_P
    # The control: with b they are the update, which each of the three lacks something
    # of.
    x = whole + b
    assert max(bytes_fit(x), independent(x[:-1], x[1:])) < LEAST_P


def test_what_crosses_between_the_servers_is_uniform_too(watch: Watch) -> None:
    """Bodies, the words of the comparisons and of the AND: all but the last message,
    the bits."""
    task = small_task(D, {"enrolment.clients": 200})
    x = np.array([2**20, 0, -5, 7, 0, 0, 0, 1], dtype=np.int64)
    clients = {ClientId(f"c{i}"): x for i in range(200)}
    received: dict[str, list[NDArray[np.int64]]] = defaultdict(list)
    for watched in [watch(task, clients) for _ in range(2)]:
        received["b"] += [watched.a.body(client)[1] for client in clients]
        for view in watched:
            messages = view.messages(view.received, "decide/")
            assert len(messages) == 15
            server = view.role.value
            received[f"signs to {server}"] += [from_bytes(m) for m in messages[:7]]
            received[f"and to {server}"] += [from_bytes(m) for m in messages[7:-1]]
    assert len(received) == 5
    assert min(fit(np.concatenate(words)) for words in received.values()) > LEAST_P


def test_the_tests_see_what_is_not_uniform() -> None:
    random = np.random.default_rng(1)
    words = random.integers(-(2**63), 2**63, RUNS * D, dtype=np.int64)
    shown = np.frombuffer(to_bytes(words), np.uint8).copy()
    shown[3::80] = 7
    found = {
        "update": np.tile(UPDATES["wild"], RUNS),
        "mask of 63 bits": words >> 1,
        "mask of a float": (random.random(RUNS * D) * 2.0**63).astype(np.int64),
        "one byte": from_bytes(shown.tobytes()),
    }
    assert {name for name, each in found.items() if fit(each) < LEAST_P} == found.keys()
