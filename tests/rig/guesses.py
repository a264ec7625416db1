"""What follows from a guess: all that a curious party would expect to see, were the guess true.

A guess is a client's update, or towards the dealer a client's name. Of everything that it implies,
digests are made with all that the party has seen and could take for a salt.
"""

import functools
import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tests.rig.views import SERVERS, DealerView, View, Words

from precad.aggregator.validate.check_with_dealer import Absorber
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.kernel import Rows
from precad.common.ring import commit, dot, encode_context, signed, to_bytes
from precad.common.share.submission import SubmissionContext, body_hasher
from precad.common.task import TAU, Task

COUNTED = 64
"""So many first values of a counter are tried for a nonce."""


@dataclass(frozen=True)
class _Known:
    """A mask whose words are guessed and not expanded."""

    guessed: Words

    def words_into(self, out: Words) -> Words:
        assert out.size == self.guessed.size
        out[:] = self.guessed
        return out


def absorbed(role: Role, task: Task, mask: Words, row_key: bytes, b: Words, r_share: int) -> Words:
    """A server's k + 1 words of a submission, if ``mask`` is its mask."""
    absorber = Absorber(role, task, cast("Any", _Known(mask)), Secret(row_key), None)
    absorber.absorb(b)
    return absorber.words(r_share)


def compared(role: Role, task: Task, words: Words) -> Words:
    """The 2k + 1 values whose signs are taken, as one server holds them."""
    half_width = TAU * task.bound if role is Role.SERVER_A else 0
    z, y = words[:-1], words[-1:]
    return np.concatenate([half_width + z, half_width - z, y])


def projected(task: Task, row_key: bytes, vector: Words) -> Words:
    """``vector`` on a submission's rows, ``[k] int64``."""
    rows = Rows(Secret(row_key), task.dimension, task.projections)
    rows.absorb(vector)
    return rows.z()


@functools.lru_cache(maxsize=1 << 18)
def _digests_of(each: bytes, salt: bytes, contexts: tuple[Digest, ...]) -> frozenset[bytes]:
    """Kept: parties that are told one thing more try the rest again."""
    found = {hashlib.sha256(salt + each).digest(), hashlib.sha256(each + salt).digest()}
    found.add(hmac.digest(salt, each, "sha256"))
    for ctx in contexts:
        found.add(hashlib.sha256(ctx.value + salt + each).digest())
        hasher = body_hasher(ctx, Secret(salt))
        hasher.update(each)
        found.add(hasher.digest())
        found |= {commit(r, ctx, Secret(salt), Secret(each)).value for r in SERVERS}
    return frozenset(found)


def digests(
    material: Iterable[bytes], salts: Iterable[bytes], contexts: Iterable[Digest]
) -> set[bytes]:
    """Every digest that a careless protocol might show of it; the protocol's own among them."""
    found: set[bytes] = set()
    salts, known = list(salts), tuple(contexts)
    for each in material:
        for salt in salts:
            found |= _digests_of(each, salt, known)
    return found


def _expected(
    vectors: Iterable[Words], numbers: Iterable[int], salts: list[bytes], contexts: list[Digest]
) -> set[bytes]:
    """The vectors whole, word by word and in digests; the numbers as vectors of one."""
    material = [to_bytes(np.ascontiguousarray(v).reshape(-1)) for v in vectors]
    material += [to_bytes(np.array([signed(n)], dtype=np.int64)) for n in numbers]
    found = digests(material, salts, contexts) | set(material)
    for each in material:
        # A vector is recognised by any of its words, in decimal too.
        words = [each[i : i + 8] for i in range(0, len(each), 8)]
        found |= set(words)
        decimal = (abs(int.from_bytes(word, "little", signed=True)) for word in words)
        found |= {str(number).encode() for number in decimal if number >= 10**10}
    return found


def seen_by_server(view: View, task: Task, client: ClientId, guess: Words) -> set[bytes]:
    """What one server would expect, if the client's update were ``guess``.

    The other server's mask and share, its part of the validation, bare and under this server's own
    masks, and the whole of what is shared.
    """
    d, width = task.dimension, 2 * task.projections + 1
    place, clients = view.place(client), len(view.held)
    header, own = view.header(client), view.mask(client, d)
    ctx = header.context.digest
    row_key, own_r = view.row_keys[ctx.value], view.shares_of_r[ctx.value]
    _, b = view.body(client)
    other = guess - b - own
    whole = own + other
    r = dot(whole, whole)
    own_words = absorbed(view.role, task, own, row_key, b, own_r)
    other_words = absorbed(view.other, task, other, row_key, b, r - own_r)
    theirs = compared(view.other, task, other_words)
    sent, received = (
        view.compared(frames, place, clients, width)[0] for frames in (view.sent, view.received)
    )
    masks = _first_masks(view.triples()[0], place, width)
    # This is the protocol that is played: its own first message is what this server computes.
    mine = 0 if view.role is Role.SERVER_A else 1
    assert (sent[mine] == compared(view.role, task, own_words) ^ masks[mine]).all()
    vectors = [guess, whole, other, b + other, other_words, own_words + other_words]
    vectors += [projected(task, row_key, each) for each in (guess, whole, other)]
    # Masked with anything that this server knows, or unmasked of what it has seen.
    vectors += [theirs, *(theirs ^ each for each in (*masks, *sent, *received))]
    vectors += [theirs ^ sent[i] ^ received[i] for i in range(2)]
    numbers = [r, r - own_r, dot(guess, guess), dot(other, other), dot(own, other), dot(b, other)]
    numbers += [2 * dot(b, other), dot(guess, other), dot(guess, own), dot(guess, b)]
    return _expected(vectors, numbers, view.salts(client), [ctx])


def seen_by_dealer(view: DealerView, task: Task, guess: Words) -> set[bytes]:
    """What the dealer would expect, if some client's update were ``guess``.

    It knows both masks, so a guess gives it b, h but for its salt, and every word that the servers
    compute and mask.
    """
    found: set[bytes] = set()
    width, salts = 2 * task.projections + 1, view.salts()
    triples = {role: view.triples(role)[0] for role in SERVERS}
    places = triples[Role.SERVER_A].a.size // width
    for half in view.halves():
        ctx = half[Role.SERVER_A].context
        row_key, shares = view.row_keys[ctx], view.shares_of_r[ctx]
        masks = dict(zip(SERVERS, view.masks(half, task.dimension), strict=True))
        b = guess - sum(masks.values())
        vectors = [guess, b, *(b + mask for mask in masks.values())]
        vectors += [projected(task, row_key, each) for each in list(vectors)]
        numbers = [dot(guess, guess), dot(b, b)]
        for role in SERVERS:
            words = absorbed(role, task, masks[role], row_key, b, shares[role])
            own = compared(role, task, words)
            vectors += [words, own]
            for place in range(places):
                a, other = (_first_masks(triples[of], place, width) for of in SERVERS)
                vectors += [own ^ each for each in (*a, *other, a[0] ^ other[0], a[1] ^ other[1])]
            numbers += [dot(b, masks[role]), 2 * dot(b, masks[role]), dot(guess, masks[role])]
        found |= _expected(vectors, numbers, salts, [Digest(ctx)])
    return found


def named_to_dealer(
    view: DealerView, task: Task, model: Digest, client: ClientId, attempt: int = 0
) -> set[bytes]:
    """What the dealer would expect, if ``client`` were one of those that it deals for.

    Task, model, version and attempt are no secrets. For a nonce it tries whatever it has seen, and
    what a counter gives.
    """
    salts = view.salts()
    counted = [n.to_bytes(32, order) for n in range(COUNTED) for order in ("little", "big")]
    nonces = [salt for salt in salts if salt] + counted
    contexts = [
        SubmissionContext(task.digest, attempt, attempt, client, model, nonce) for nonce in nonces
    ]
    material = [client.encoded(), encode_context("client", client.encoded())]
    known = [Digest(square.context) for _, square in view.asked]
    found = {client.encoded()} | {context.digest.value for context in contexts}
    return found | digests(material, salts, known)


def _first_masks(triple: Any, place: int, width: int) -> NDArray[np.int64]:
    """Of the first AND, the masks of both operands at one client's values, ``[2, w] int64``."""
    clients = slice(place * width, (place + 1) * width)
    return np.stack([triple.a.reshape(-1)[clients], triple.b.reshape(-1)[clients]])


class Haystack:
    """Bytes to look through, again and again."""

    def __init__(self, blobs: Iterable[bytes]) -> None:
        self._everything = b"\0\0".join(blobs)
        self._beginnings = {self._everything[i : i + 8] for i in range(len(self._everything))}

    def shows(self, e: bytes) -> bool:
        """As bytes or in hexadecimal. Most aren't there, which their first bytes tell at once."""
        return any(
            (len(form) < 8 or form[:8] in self._beginnings) and form in self._everything
            for form in (e, e.hex().encode())
        )


def recognised(expected: Iterable[bytes], *haystacks: Haystack) -> set[bytes]:
    """Those that are in one of the haystacks."""
    # Words of a zero or of a small number are everywhere.
    telling = [e for e in expected if len(e.strip(b"\0\xff")) >= 4]
    return {e for e in telling if any(each.shows(e) for each in haystacks)}
