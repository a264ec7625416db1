"""A curious A, a curious B, then a curious dealer, with two neighbouring candidates for
an update.

None tells them apart from its whole view, nor the dealer whose update it is. That the
noisy sum is a little likelier under one of them is what differential privacy accounts
for: the statistical test leaves the release out.
"""

import dataclasses
import functools
import hashlib
import hmac
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.linear_model import LogisticRegression
from tests.conftest import small_task
from tests.faults.world import World
from tests.integration.unmasked.conftest import Watch
from tests.rig import views
from tests.rig.views import SERVERS, DealerView, Haystack, View, Watched

from precad.aggregator.rpc.dealer_client import request_to_wire, square_request_to_wire
from precad.aggregator.server_messages import Fact
from precad.aggregator.store import read_training
from precad.aggregator.store.ledger import history_after, history_start
from precad.common import fixed_point, ring, submission
from precad.common.identifiers import ClientId, Role, Secret
from precad.common.ring import dot, from_bytes, signed, to_bytes
from precad.common.submission import body_hasher
from precad.norm_check.dealing import DealRequest, SquareRequest

D = 8
TASK = small_task(D)
PARTIES = (*SERVERS, Role.DEALER)
VICTIM, OTHER, NEIGHBOUR = map(ClientId, ("victim", "other", "neighbour"))
NAMES = VICTIM, NEIGHBOUR
Rounds = list[Watched]


def candidates() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two valid updates that differ by one record of norm just below R."""
    random = np.random.default_rng(3)
    base, record = (
        random.integers(-(2**22), 2**22, D, dtype=np.int64),
        random.normal(size=D),
    )
    record *= 0.999 * 2**TASK.fractional_bits / np.linalg.norm(record)
    neighbour = base + np.trunc(record).astype(np.int64)
    assert (
        0
        < fixed_point.squared_norm(neighbour - base)
        <= 2 ** (2 * TASK.fractional_bits)
    )
    assert (
        max(fixed_point.squared_norm(base), fixed_point.squared_norm(neighbour))
        <= TASK.mechanism.bound**2
    )
    return base, neighbour


BOTH = candidates()


def view_of(watched: Watched, role: Role) -> View | DealerView:
    if role is Role.DEALER:
        return watched.dealer
    return watched.a if role is Role.SERVER_A else watched.b


@functools.cache
def looked_through(watched: Watched, role: Role) -> Haystack:
    """All that a party sees.

    The dealer is given more than it has: every header, both disks.
    """
    view, blobs = view_of(watched, role), {"log": watched.log.encode()}
    blobs |= (
        view.blobs(D) | watched.within_reach()
        if isinstance(view, DealerView)
        else view.blobs()
    )
    return Haystack(blobs.values())


def fitting(watched: Watched, role: Role, *told: bytes) -> list[bool]:
    """For each candidate, whether anything that follows from it alone is to be found.

    The dealer tries each candidate for each client that it deals for. ``told`` is what
    a careless scheme tells the party besides.
    """
    view, haystacks = (
        view_of(watched, role),
        (looked_through(watched, role), Haystack(told)),
    )
    view.told = [*told]
    expected = [
        (
            views.seen_by_dealer(view, TASK, guess)
            if isinstance(view, DealerView)
            else views.seen_by_server(view, TASK, VICTIM, guess)
        )
        for guess in BOTH
    ]
    view.told = []
    return told_apart(expected[0], expected[1], *haystacks)


def told_apart(one: set[bytes], other: set[bytes], *haystacks: Haystack) -> list[bool]:
    """What follows from both guesses alike tells nothing: a row of zeros projects both
    to 0."""
    return [
        bool(views.recognised(only, *haystacks)) for only in (one - other, other - one)
    ]


@pytest.fixture(scope="module")
def together(watch: Watch) -> Rounds:
    """Two rounds, one for each truth about the victim, beside another client."""
    return [watch(TASK, {VICTIM: truth, OTHER: BOTH[0]}) for truth in BOTH]


@pytest.fixture(scope="module")
def alone(watch: Watch) -> Rounds:
    return [watch(TASK, {VICTIM: truth}) for truth in BOTH]


@pytest.mark.parametrize("truth", [0, 1])
@pytest.mark.parametrize("role", PARTIES)
def test_no_guess_can_be_tested(together: Rounds, role: Role, truth: int) -> None:
    assert fitting(together[truth], role) == [False, False]


Careless = Callable[[Watched, Role], bytes]


def lacking(watched: Watched, role: Role) -> bytes:
    """What a server lacks: the other one's mask. The dealer lacks b."""
    if role is Role.DEALER:
        return to_bytes(watched.a.body(VICTIM)[1])
    return to_bytes((watched.b if role is Role.SERVER_A else watched.a).mask(VICTIM, D))


def commitment_without_salt(watched: Watched, role: Role) -> bytes:
    """To the mask, as to its seed; to b by the dealer's side, as in a header."""
    ctx, lacks = watched.a.header(VICTIM).context.digest, lacking(watched, role)
    if role is Role.DEALER:
        hasher = body_hasher(ctx, Secret(b""))
        hasher.update(lacks)
        return hasher.digest()
    other = watched.b if role is Role.SERVER_A else watched.a
    return ring.commit(other.role, ctx, salt=Secret(b""), seed=Secret(lacks)).value


def the_whole_of_r(watched: Watched, _: Role) -> bytes:
    ctx = watched.a.header(VICTIM).context.digest.value
    return to_bytes(np.array([signed(sum(view.shares_of_r[ctx] for view in watched))]))


def a_value_without_its_mask(watched: Watched, role: Role) -> bytes:
    """Of what a server's first message of the decision hides: the other's; A's for the
    dealer."""
    sender = watched.b if role is Role.SERVER_A else watched.a
    row, place, width = int(sender.role is Role.SERVER_B), sender.place(VICTIM), 81
    sent = sender.compared(sender.sent, place, len(sender.held), width)[0][row]
    triple = sender.triples()[0]
    mask = (triple.a, triple.b)[row].reshape(-1, width)[place]
    return to_bytes((sent ^ mask)[80:])


MASKS: dict[str, Careless] = {
    "plain-digest": (
        lambda watched, role: hashlib.sha256(lacking(watched, role)).digest()
    ),
    "commitment-without-salt": commitment_without_salt,
    "one-word-of-the-mask": lambda watched, role: lacking(watched, role)[16:24],
    "a-value-without-its-mask": a_value_without_its_mask,
}
BROKEN: dict[Role, dict[str, Careless]] = {
    Role.SERVER_A: MASKS | {"the-whole-of-r": the_whole_of_r},
    Role.SERVER_B: MASKS | {"the-whole-of-r": the_whole_of_r},
    # With salt_h b's hash can be made; and the header is within reach.
    Role.DEALER: (
        MASKS | {"b": lacking, "salt-h": lambda watched, _: watched.a.body(VICTIM)[0]}
    ),
}
"""Each needs another part of the search: digests, salts, words, masks, numbers."""


@pytest.mark.parametrize(
    ("scheme", "role"), [(s, role) for role in PARTIES for s in BROKEN[role]]
)
def test_the_same_server_breaks_a_careless_scheme(
    alone: Rounds, scheme: str, role: Role
) -> None:
    """The control: one careless message more, and the same test finds the true
    candidate."""
    for truth, watched in enumerate(alone):
        told = BROKEN[role][scheme](watched, role)
        assert fitting(watched, role, told) == [truth == 0, truth == 1]


def shown(hidden: dict[str, bytes], blobs: dict[str, bytes]) -> list[str]:
    data = b"\0\0".join(blobs.values())
    return [name for name, e in hidden.items() if e in data or e.hex().encode() in data]


def test_the_dealer_is_shown_nothing_of_what_masks_hide(together: Rounds) -> None:
    """With the masks, any of it is too much; the dealer can't use h alone, and shan't
    have it."""
    watched = together[1]
    header, (salt, b) = watched.b.header(VICTIM), watched.b.body(VICTIM)
    in_header = {"h": header.body_digest.value, "nonce": header.context.nonce}
    in_header |= {"name": VICTIM.encoded(), "signature": header.signature.value}
    hidden = in_header | {
        **{f"word {i} of b": to_bytes(b[i : i + 1]) for i in range(b.size)},
        "salt_h": salt,
        "certificate": header.signature.certificates[0][-64:],
        "digest of the whole": header.whole_digest.value,
        "link secret": watched.a.messages(watched.a.sent, "set-secret")[0],
    }
    # The control: each of them is among what the servers see, and is found where it is
    # told.
    assert all(each in views.header_bytes(header) for each in in_header.values())
    blobs = watched.dealer.blobs(D)
    assert shown(hidden, blobs) == []
    for name, secret in hidden.items():
        for told in (b"..." + secret + b"...", secret.hex().encode()):
            assert shown(hidden, blobs | {"told": told}) == [name]


def named(watch: Watch, truth: int) -> list[bool]:
    """For each name, whether the dealer's view of a round of one has anything that
    follows."""
    watched = watch(TASK, {NAMES[truth]: BOTH[0], OTHER: BOTH[1]})
    model, view = watched.b.headers[0].context.model, watched.dealer
    first, second = (views.named_to_dealer(view, TASK, model, name) for name in NAMES)
    return told_apart(first, second, Haystack(view.blobs(D).values()))


@pytest.mark.parametrize("truth", [0, 1])
def test_the_dealer_can_test_no_name(watch: Watch, truth: int) -> None:
    assert named(watch, truth) == [False, False]
    # The control: where clients count and don't draw, the same dealer finds it behind a
    # nonce.
    for order in ("little", "big"):
        counted = map(
            int.to_bytes,
            itertools.count(),
            itertools.repeat(32),
            itertools.repeat(order),
        )
        drawn = SimpleNamespace(
            token_bytes=lambda _size, counted=counted: next(counted)
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(submission, "secrets", drawn)
            assert named(watch, truth) == [truth == 0, truth == 1]


CLIENTS = 60
ROUNDS = 20


def bits(*words: NDArray[np.int64]) -> NDArray[np.float32]:
    data = np.concatenate([w.astype("<i8").view(np.uint8) for w in words])
    return np.unpackbits(data).astype(np.float32)


def features(view: View, client: ClientId) -> NDArray[np.float32]:
    """Every bit of a server's view that is about one client, and of what can be
    combined of it."""
    header, held = view.header(client), view.held[client]
    ctx, width = header.context.digest.value, 2 * TASK.projections + 1
    own, (salt, b) = view.mask(client, D), view.body(client)
    words = [own, b, b + own, b - own]
    seen = [held.seed.reveal(), held.salt.reveal(), salt, header.context.nonce]
    seen += [
        header.commitment_a.value,
        header.commitment_b.value,
        header.body_digest.value,
    ]
    words += [from_bytes(value) for value in (*seen, view.row_keys[ctx])]
    # What comes of b on its way to y.
    share = view.shares_of_r[ctx]
    products = [
        share,
        dot(b, own),
        dot(b, b),
        share + 2 * dot(b, own),
        share + dot(b, b),
    ]
    words.append(np.array([signed(each) for each in products]))
    place = view.place(client)
    *signs, opened = view.compared(view.received, place, CLIENTS, width)
    # Of the signs the norm's, which is the last; of the conjunction whole words of its
    # last pairs, and the one bit that means something of each other word.
    words += [np.ascontiguousarray(each[:, -1]) for each in signs]
    meaning = [
        (each.reshape(-1) & 1).astype(np.float32) for each in (*signs[7:], opened)
    ]
    return np.concatenate([bits(*words), *meaning])


def features_of_dealer(
    view: DealerView, half: dict[Role, SquareRequest]
) -> NDArray[np.float32]:
    """The same of all that the dealer has and computes of one client's submission."""
    a, b = (half[role] for role in SERVERS)
    seen = [a.context, a.commitment_a, a.commitment_b, view.row_keys[a.context]]
    for each in (a, b):
        seen += [each.seed.reveal(), each.salt.reveal()]
    of_a, of_b = view.masks(half, D)
    whole = of_a + of_b
    products = [
        dot(whole, whole),
        dot(of_a, of_b),
        *view.shares_of_r[a.context].values(),
    ]
    words = [
        of_a,
        of_b,
        whole,
        np.array(products),
        *(from_bytes(value) for value in seen),
    ]
    return bits(*words)


def accuracy(x: NDArray[np.float32], labels: NDArray[np.int64]) -> tuple[int, int]:
    half = len(x) // 2
    model = LogisticRegression(C=0.01, max_iter=200).fit(x[:half], labels[:half])
    right = int((model.predict(x[half:]) == labels[half:]).sum())
    return right, len(x) - half


def test_no_server_learns_to_tell_the_candidates_apart(watch: Watch) -> None:
    """Nor the dealer.

    600 guesses: where 64 % of them were right it would show nine times in ten.

    A false alarm comes in one of 10^6 runs.
    """
    task = small_task(D, {"enrolment.clients": CLIENTS})
    coin, names = (
        np.random.default_rng(4),
        sorted(ClientId(f"c{i}") for i in range(CLIENTS)),
    )
    seen: dict[Role, list[NDArray[np.float32]]] = {role: [] for role in PARTIES}
    drawn, plain = [], []
    for _ in range(ROUNDS):
        given = {name: int(coin.integers(2)) for name in names}
        watched = watch(task, {name: BOTH[label] for name, label in given.items()})
        halves = {half[Role.SERVER_A].context: half for half in watched.dealer.halves()}
        for name in names:
            drawn.append(given[name])
            for view in watched:
                seen[view.role].append(features(view, name))
            half = halves[watched.a.header(name).context.digest.value]
            seen[Role.DEALER].append(features_of_dealer(watched.dealer, half))
            plain.append(
                bits(watched.a.expanded(name, D) + watched.b.expanded(name, D))
            )
    labels, x = np.array(drawn), np.array(plain)
    for whole in map(np.array, seen.values()):
        right, total = accuracy(whole, labels)
        assert stats.binomtest(right, total, 0.5).pvalue > 1e-7
        # The control: the same distinguisher with what the views make together.
        right, total = accuracy(np.concatenate([whole, x], axis=1), labels)
        assert right / total > 0.95
        # No single bit leans either way (Bonferroni over all of them).
        ones = labels == 1
        difference = whole[ones].mean(axis=0) - whole[~ones].mean(axis=0)
        spread = np.sqrt(0.25 / ones.sum() + 0.25 / (~ones).sum())
        assert np.abs(difference / spread).max() < stats.norm.isf(1e-7 / whole.shape[1])


# --- a curious owner and a curious dealer, with every candidate for who else was drawn
# -----------

# On the first version a cohort of 20 was recovered from an unsalted digest in 1.6 s.
# Here all that an owner is sent or keeps, that the dealer is asked, and the ledgers'
# heads that operators note elsewhere are held against every candidate: no list, digest,
# statement or file is made of one. The two servers know whom they count; that is no
# secret between them (docs/protocol.md).
OWNERS, VERSIONS = 6, 4
DRAWN = {
    "privacy.client_rate": 0.5,
    "training.rounds": VERSIONS,
    "enrolment.clients": OWNERS,
}
DRAWN |= {"deadlines.enrol": 500.0, "deadlines.collect": 10.0, "deadlines.peer": 5.0}
TRAINING = small_task(4, DRAWN)


def cohorts(world: World) -> Iterator[tuple[ClientId, ...]]:
    sizes = range(len(world.clients) + 1)
    return itertools.chain(
        *(itertools.combinations(world.clients, size) for size in sizes)
    )


def made_of(cohort: tuple[ClientId, ...], salts: Iterable[bytes]) -> set[bytes]:
    """What a careless protocol would make of a list of clients, with any salt that is
    known."""
    names = [client.name for client in cohort]
    encoded = [client.encoded() for client in cohort]
    forms = [
        json.dumps(names).encode(),
        json.dumps(names, separators=(",", ":")).encode(),
        ",".join(names).encode(),
        b"".join(encoded),
        ring.encode_context("valid-set", TRAINING.digest.value, *encoded),
        ring.encode_context("cohort", *encoded),
    ]
    found = set()
    for version, form, salt in itertools.product(range(VERSIONS), forms, salts):
        tagged = salt + version.to_bytes(8, "little") + form
        found |= {
            hashlib.sha256(each).digest() for each in (salt + form, tagged, form + salt)
        }
        found.add(hmac.digest(salt, form, "sha256"))
    before = history_start(TRAINING.digest)
    for attempt in range(VERSIONS):
        fact = Fact(
            version=attempt, attempt=attempt, voided=False, clients=tuple(names)
        )
        found.add(history_after(before, [fact]).value)
    return found


def recognised(candidates: set[bytes], view: bytes) -> set[bytes]:
    return {each for each in candidates if each in view or each.hex().encode() in view}


def salts_in(view: bytes) -> list[bytes]:
    """Whatever an owner could take for a salt: nothing, and what it was told."""
    return [
        b"",
        bytes(32),
        TRAINING.digest.value,
        view[:32],
        hashlib.sha256(view).digest(),
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(TRAINING, tmp_path_factory.mktemp("world"), seed=21)
    dealer = cast("Mock", made.dealer)
    dealer.ask, dealer.corrections = (
        Mock(wraps=dealer.ask),
        Mock(wraps=dealer.corrections),
    )
    made.run()
    return made


def digest_of_three(world: World) -> tuple[tuple[ClientId, ...], bytes]:
    """A cohort, and what a careless scheme would show of it."""
    truth = tuple(sorted(world.clients[1:4]))
    form = ring.encode_context("cohort", *(client.encoded() for client in truth))
    return truth, hashlib.sha256(form).digest()


def test_an_owner_recognises_no_candidate_for_who_else_was_drawn(world: World) -> None:
    folders = [world.folder / role.value for role in SERVERS]
    a, b = (read_training(f"sqlite:///{folder}/state.db") for folder in folders)
    # Salted: equal heads, or a head that comes again, would tell that the same were
    # charged.
    assert (a.entries, b.entries, a.head == b.head) == (VERSIONS, VERSIONS, False)
    (truth, careless), found = digest_of_three(world), []
    for owner in world.clients:
        # All files of an owner, and both ledgers' heads as operators note them.
        files = [
            path.read_bytes() for path in sorted((world.folder / owner.name).iterdir())
        ]
        view = b"\0".join([*files, a.head.value, b.head.value])
        assert [each for each in world.clients if each.name.encode() in view] in (
            [],
            [owner],
        )
        for cohort in cohorts(world):
            assert not recognised(made_of(cohort, salts_in(view)), view), cohort
            # The control: one unsalted digest of a cohort more.
            found += (
                [cohort] if recognised(made_of(cohort, [b""]), view + careless) else []
            )
    assert found == [truth] * OWNERS


def test_the_dealer_is_told_numbers_and_masks_and_never_who(world: World) -> None:
    """By what both servers ask it in the training, batches and squares."""
    dealer = cast("Mock", world.dealer)
    asked = [*dealer.corrections.call_args_list, *dealer.ask.call_args_list]
    requests = [call.args[1] for call in asked]
    squares = [each for each in requests if isinstance(each, SquareRequest)]
    assert {type(each) for each in requests} == {DealRequest, SquareRequest}
    for kind, names in {
        DealRequest: "task attempt batch clients comparisons nonces",
        SquareRequest: "task attempt context commitment_a commitment_b seed salt",
    }.items():
        assert {each.name for each in dataclasses.fields(kind)} == set(names.split())
    messages = [square_request_to_wire(each, b"epoch") for each in squares] + [
        request_to_wire(each, role.value, b"epoch")
        for each, role in itertools.product(requests, SERVERS)
        if isinstance(each, DealRequest)
    ]
    data = b"\0".join(message.SerializeToString() for message in messages)
    seen = {data[i : i + 32] for i in range(len(data) - 31)}
    # The search looks through whole requests.
    for each in squares:
        assert {each.context, each.seed.reveal(), each.salt.reveal()} <= seen
    assert not [each for each in world.clients if each.name.encode() in data]
    # Nor does anything of a client's come again: attempts can't be linked by it.
    assert set(Counter(each.context for each in squares).values()) == {len(SERVERS)}
    for name in ("seed", "salt"):
        values = [getattr(each, name).reveal() for each in squares]
        assert len(set(values)) == len(values)
    # And it recognises no cohort.
    (truth, careless), found = digest_of_three(world), []
    salts = [*salts_in(data), *(each.context for each in squares)][:9]
    for cohort in cohorts(world):
        candidates = made_of(cohort, salts)
        assert not candidates & seen, cohort
        # The control: one digest of a cohort more.
        found += [cohort] if careless in candidates else []
    assert found == [truth]
