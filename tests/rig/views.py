"""All that a curious party gets to see of one round, in bytes, by where it was seen."""

import functools
import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.attempt_states import Finished
from precad.aggregator.peer_link import Frame
from precad.aggregator.rpc.dealer_client import request_to_wire, square_request_to_wire
from precad.aggregator.validate.check_with_dealer import Absorber
from precad.common import kernel, ring
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import (
    SALT_BYTES,
    commit,
    dot,
    from_bytes,
    mask_stream,
    signed,
    to_bytes,
)
from precad.common.submission import (
    SignedHeader,
    Submission,
    SubmissionContext,
    body_hasher,
)
from precad.common.task import TAU, Task
from precad.norm_check.dealing import (
    BinaryTriple,
    DealRequest,
    DealtRandomness,
    SquareRequest,
)

SERVERS = (Role.SERVER_A, Role.SERVER_B)
_EPOCH = bytes(16)

Words = NDArray[np.int64]


def header_bytes(header: SignedHeader) -> bytes:
    return b"".join(
        [header.signed, header.signature.value, *header.signature.certificates]
    )


@dataclass
class View:
    """One server's: what it receives, is dealt, sends, stores and expands."""

    role: Role
    headers: list[Submission] = field(default_factory=list)
    held: dict[ClientId, Submission] = field(default_factory=dict)
    shares: dict[ClientId, bytes] = field(
        default_factory=dict
    )  # A seed; or salt_h and b
    received: list[Frame] = field(default_factory=list)
    sent: list[Frame] = field(default_factory=list)
    dealt: list[tuple[DealRequest, Words]] = field(default_factory=list)
    dealer_key: bytes = b""
    row_keys: dict[bytes, bytes] = field(default_factory=dict)  # By context
    shares_of_r: dict[bytes, int] = field(
        default_factory=dict
    )  # By context: this server's
    stored: dict[str, bytes] = field(default_factory=dict)
    told: list[bytes] = field(
        default_factory=list
    )  # What a careless scheme tells it besides
    outcome: Finished | None = None

    @property
    def other(self) -> Role:
        return Role.SERVER_B if self.role is Role.SERVER_A else Role.SERVER_A

    def header(self, client: ClientId) -> SignedHeader:
        return next(h.header for h in self.headers if h.context.client == client)

    def place(self, client: ClientId) -> int:
        return sorted(self.held).index(client)

    def mask(self, client: ClientId, dimension: int) -> Words:
        return self.held[client].mask().words(dimension)

    def body(self, client: ClientId) -> tuple[bytes, Words]:
        """salt_h and b: as B sent it on, as A received it."""
        frames = self.received if self.role is Role.SERVER_A else self.sent
        whole = self.messages(frames, "body/")[self.place(client)]
        return whole[:SALT_BYTES], from_bytes(whole[SALT_BYTES : -len(b"w")])

    def expanded(self, client: ClientId, dimension: int) -> Words:
        mask = self.mask(client, dimension)
        return mask if self.role is Role.SERVER_A else mask + self.body(client)[1]

    def messages(self, frames: list[Frame], part: str) -> list[bytes]:
        found = [b""]
        for frame in frames:
            if part in frame.step:
                found[-1] += frame.payload
                found += [b""] * frame.last
        return found[:-1]

    def compared(
        self, frames: list[Frame], place: int, clients: int, width: int
    ) -> list[Words]:
        """Of each exchange of the decision, the words that are about one client.

        The seven ANDs that take the sign bits have a word a value, in some rows; those
        of the conjunction have a row a client, for each of two operands; the last
        message a word a client.
        """
        *ands, opened = (from_bytes(m) for m in self.messages(frames, "decide/"))
        signs, conjunction = ands[:7], ands[7:]
        rows = [each.reshape(-1, clients, width)[:, place] for each in signs]
        rows += [each.reshape(2, clients, -1)[:, place] for each in conjunction]
        return [np.ascontiguousarray(each) for each in (*rows, opened[place])]

    def triples(self, number: int = 0) -> list[BinaryTriple]:
        request, corrections = self.dealt[number]
        dealt = DealtRandomness(
            self.role, Secret(self.dealer_key), request, corrections
        )
        return list(dealt.binary_triples())

    def blobs(self) -> dict[str, bytes]:
        blobs = {f"share of {client}": share for client, share in self.shares.items()}
        for number, each in enumerate(self.headers):
            opening = each.seed.reveal() + each.salt.reveal()
            blobs[f"header {number}"] = header_bytes(each.header) + opening
        for name, frames in (("received", self.received), ("sent", self.sent)):
            for number, frame in enumerate(frames):
                blobs[f"{name} {number} {frame.step}"] = (
                    frame.step.encode() + frame.payload
                )
        blobs["dealer key"] = self.dealer_key
        for ctx, key in self.row_keys.items():
            blobs[f"row key {ctx.hex()[:8]}"] = key
            blobs[f"share of r {ctx.hex()[:8]}"] = to_bytes(
                np.array([self.shares_of_r[ctx]])
            )
        for number, (_, corrections) in enumerate(self.dealt):
            blobs[f"corrections {number}"] = to_bytes(corrections)
            for place, triple in enumerate(self.triples(number)):
                words = np.concatenate(
                    [w.reshape(-1) for w in (triple.a, triple.b, triple.c)]
                )
                blobs[f"triple {number} {place}"] = to_bytes(words)
        for client in self.held:
            d = self.body(client)[1].size
            blobs[f"mask of {client}"] = to_bytes(self.mask(client, d))
            blobs[f"expanded share of {client}"] = to_bytes(self.expanded(client, d))
        blobs |= {f"told {number}": told for number, told in enumerate(self.told)}
        return blobs | {f"file {name}": data for name, data in self.stored.items()}

    def salts(self, client: ClientId) -> list[bytes]:
        header, held = self.header(client), self.held[client]
        salts = [held.salt, held.seed]
        found = [b"", bytes(32), *(s.reveal() for s in salts), self.body(client)[0]]
        found += [
            header.context.nonce,
            header.context.task.value,
            header.context.digest.value,
        ]
        found += [
            header.commitment_a.value,
            header.commitment_b.value,
            header.body_digest.value,
        ]
        found += [self.dealer_key, *self.row_keys.values(), *self.told]
        for frames in (self.received, self.sent):
            found += [m for m in self.messages(frames, "") if len(m) == SALT_BYTES]
        return [salt for salt in found if len(salt) in (0, 32)]


@dataclass
class DealerView:
    """The dealer's: what it is asked, what it draws, and the masks that it computes."""

    asked: list[tuple[Role, SquareRequest]] = field(default_factory=list)
    batches: list[tuple[Role, DealRequest, Words]] = field(
        default_factory=list
    )  # As they went
    keys: dict[Role, bytes] = field(default_factory=dict)
    row_keys: dict[bytes, bytes] = field(default_factory=dict)
    shares_of_r: dict[bytes, dict[Role, int]] = field(
        default_factory=dict
    )  # By context and server
    log: list[str] = field(default_factory=list)  # What was logged while it worked
    told: list[bytes] = field(
        default_factory=list
    )  # What a careless scheme tells it besides

    role = Role.DEALER

    def halves(self) -> Iterator[dict[Role, SquareRequest]]:
        of_b = {r.context: r for role, r in self.asked if role is Role.SERVER_B}
        for role, request in self.asked:
            if role is Role.SERVER_A:
                yield {Role.SERVER_A: request, Role.SERVER_B: of_b[request.context]}

    def masks(
        self, half: dict[Role, SquareRequest], dimension: int
    ) -> tuple[Words, Words]:
        """a_A and a_B of one context, ``[d] int64`` each."""

        def mask(role: Role) -> Words:
            own = half[role]
            stream = mask_stream(
                own.seed,
                role,
                ctx=Digest(own.context),
                commitment_a=Digest(own.commitment_a),
                commitment_b=Digest(own.commitment_b),
            )
            return stream.words(dimension)

        return mask(Role.SERVER_A), mask(Role.SERVER_B)

    def triples(self, role: Role) -> list[BinaryTriple]:
        request, words = next((r, w) for to, r, w in self.batches if to is role)
        return list(
            DealtRandomness(
                role, Secret(self.keys[role]), request, words
            ).binary_triples()
        )

    def blobs(self, dimension: int) -> dict[str, bytes]:
        blobs = {f"key of {role.value}": key for role, key in self.keys.items()}
        for number, (role, square) in enumerate(self.asked):
            wire = square_request_to_wire(square, _EPOCH).SerializeToString()
            blobs[f"square {number} {role.value}"] = wire
        for number, (role, batch, words) in enumerate(self.batches):
            wire = request_to_wire(batch, role.value, _EPOCH).SerializeToString()
            blobs[f"batch {number} {role.value}"] = wire + to_bytes(words)
        for number, half in enumerate(self.halves()):
            ctx = half[Role.SERVER_A].context
            of_a, of_b = self.masks(half, dimension)
            r = dot(of_a + of_b, of_a + of_b)
            shares = self.shares_of_r[ctx]
            assert signed(sum(shares.values())) == r
            blobs[f"masks {number}"] = b"".join(
                map(to_bytes, (of_a, of_b, of_a + of_b))
            )
            blobs[f"r {number}"] = to_bytes(np.array([r, *shares.values()]))
            blobs[f"row key {number}"] = self.row_keys[ctx]
        blobs["log"] = "\n".join(self.log).encode()
        return blobs | {f"told {number}": told for number, told in enumerate(self.told)}

    def salts(self) -> list[bytes]:
        found = [
            b"",
            bytes(32),
            *self.keys.values(),
            *self.row_keys.values(),
            *self.told,
        ]
        for _, square in self.asked:
            found += [square.seed.reveal(), square.salt.reveal(), square.context]
            found += [square.task.value, square.commitment_a, square.commitment_b]
        for _, batch, _ in self.batches:
            found += [batch.nonces[:32], batch.nonces[32:]]
        return [salt for salt in dict.fromkeys(found) if len(salt) in (0, 32)]


@dataclass(eq=False)
class Watched:
    a: View
    b: View
    dealer: DealerView
    log: str = ""  # Of all parties together: each view is searched with all of it

    def __iter__(self) -> Iterator[View]:
        return iter((self.a, self.b))

    def within_reach(self) -> dict[str, bytes]:
        blobs = {
            f"header {n}": header_bytes(h.header) for n, h in enumerate(self.b.headers)
        }
        for view in self:
            blobs |= {
                f"{view.role.value} {name}": data for name, data in view.stored.items()
            }
        return blobs


COUNTED = 64  # So many first values of a counter are tried for a nonce


def absorbed(
    role: Role, task: Task, mask: Words, row_key: bytes, b: Words, r_share: int
) -> Words:
    def words_into(out: Words) -> Words:
        np.copyto(out, mask)
        return out

    known = cast("ring.Keystream", SimpleNamespace(words_into=words_into))
    absorber = Absorber(
        role, task, known, Secret(row_key), None, bound=task.mechanism.bound
    )
    absorber.absorb(b)
    return absorber.words(r_share)


def compared(role: Role, task: Task, words: Words) -> Words:
    """The 2k + 1 values whose signs are taken, as one server holds them."""
    half_width = TAU * task.mechanism.bound if role is Role.SERVER_A else 0
    z, y = words[:-1], words[-1:]
    return np.concatenate([half_width + z, half_width - z, y])


def projected(task: Task, row_key: bytes, vector: Words) -> Words:
    """``vector`` on a submission's rows, ``[k] int64``."""
    rows = kernel.Rows(Secret(row_key), dimension=task.dimension, k=task.projections)
    rows.absorb(vector)
    return rows.z()


@functools.lru_cache(maxsize=1 << 18)
def _digests_of(
    each: bytes, salt: bytes, contexts: tuple[Digest, ...]
) -> frozenset[bytes]:
    """Kept: parties that are told one thing more try the rest again."""
    found = {hashlib.sha256(salt + each).digest(), hashlib.sha256(each + salt).digest()}
    found.add(hmac.digest(salt, each, "sha256"))
    for ctx in contexts:
        found.add(hashlib.sha256(ctx.value + salt + each).digest())
        hasher = body_hasher(ctx, Secret(salt))
        hasher.update(each)
        found.add(hasher.digest())
        found |= {
            commit(r, ctx, salt=Secret(salt), seed=Secret(each)).value for r in SERVERS
        }
    return frozenset(found)


def digests(
    material: Iterable[bytes], salts: Iterable[bytes], contexts: Iterable[Digest]
) -> set[bytes]:
    tried, known = list(salts), tuple(contexts)
    return set().union(
        *(_digests_of(each, salt, known) for each in material for salt in tried)
    )


def _expected(
    vectors: Iterable[Words],
    numbers: Iterable[int],
    salts: list[bytes],
    contexts: list[Digest],
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


def seen_by_server(
    view: View, task: Task, client: ClientId, guess: Words
) -> set[bytes]:
    """What one server would expect, if the client's update were ``guess``."""
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
    sent = view.compared(view.sent, place, clients, width)[0]
    received = view.compared(view.received, place, clients, width)[0]
    masks = _first_masks(view.triples()[0], place, width)
    # This is the protocol that is played: its own first message is what this server
    # computes.
    mine = 0 if view.role is Role.SERVER_A else 1
    assert (sent[mine] == compared(view.role, task, own_words) ^ masks[mine]).all()
    vectors = [guess, whole, other, b + other, other_words, own_words + other_words]
    vectors += [projected(task, row_key, each) for each in (guess, whole, other)]
    # Masked with anything that this server knows, or unmasked of what it has seen.
    vectors += [theirs, *(theirs ^ each for each in (*masks, *sent, *received))]
    vectors += [theirs ^ sent[i] ^ received[i] for i in range(2)]
    numbers = [
        r,
        r - own_r,
        dot(guess, guess),
        dot(other, other),
        dot(own, other),
        dot(b, other),
    ]
    numbers += [2 * dot(b, other), dot(guess, other), dot(guess, own), dot(guess, b)]
    return _expected(vectors, numbers, view.salts(client), [ctx])


def seen_by_dealer(view: DealerView, task: Task, guess: Words) -> set[bytes]:
    """What the dealer would expect, if some client's update were ``guess``."""
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
                vectors += [
                    own ^ each
                    for each in (*a, *other, a[0] ^ other[0], a[1] ^ other[1])
                ]
            numbers += [
                dot(b, masks[role]),
                2 * dot(b, masks[role]),
                dot(guess, masks[role]),
            ]
        found |= _expected(vectors, numbers, salts, [Digest(ctx)])
    return found


def named_to_dealer(
    view: DealerView, task: Task, model: Digest, client: ClientId, attempt: int = 0
) -> set[bytes]:
    """What the dealer would expect, if it dealt for ``client``."""
    salts = view.salts()
    counted = [
        n.to_bytes(32, order) for n in range(COUNTED) for order in ("little", "big")
    ]
    nonces = [salt for salt in salts if salt] + counted
    context = functools.partial(
        SubmissionContext,
        task=task.digest,
        version=attempt,
        attempt=attempt,
        client=client,
        model=model,
    )
    material = [client.encoded(), ring.encode_context("client", client.encoded())]
    known = [Digest(square.context) for _, square in view.asked]
    found = {client.encoded()} | {context(nonce=nonce).digest.value for nonce in nonces}
    return found | digests(material, salts, known)


def _first_masks(triple: BinaryTriple, place: int, width: int) -> NDArray[np.int64]:
    """The first AND's masks of operands at one client's values, ``[2, w] int64``."""
    clients = slice(place * width, (place + 1) * width)
    return np.stack([triple.a.reshape(-1)[clients], triple.b.reshape(-1)[clients]])


class Haystack:
    def __init__(self, blobs: Iterable[bytes]) -> None:
        self._everything = b"\0\0".join(blobs)
        self._beginnings = {
            self._everything[i : i + 8] for i in range(len(self._everything))
        }

    def shows(self, e: bytes) -> bool:
        """As bytes or in hexadecimal. Most aren't there: their first bytes tell it."""
        forms = [
            f for f in (e, e.hex().encode()) if len(f) < 8 or f[:8] in self._beginnings
        ]
        return any(form in self._everything for form in forms)


def recognised(expected: Iterable[bytes], *haystacks: Haystack) -> set[bytes]:
    # Words of a zero or of a small number are everywhere.
    telling = [e for e in expected if len(e.strip(b"\0\xff")) >= 4]
    return {e for e in telling if any(each.shows(e) for each in haystacks)}
