"""All that a curious party gets to see of one round, in bytes, by where it was seen."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.peer_link import Frame
from precad.aggregator.rounds.states import Finished
from precad.aggregator.rpc.dealer_client import request_to_wire, square_request_to_wire
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.ring import SALT_BYTES, dot, from_bytes, mask_stream, signed, to_bytes
from precad.common.share.submission import SignedHeader, Submission
from precad.norm_check.dealing import BinaryTriple, DealRequest, DealtRandomness, SquareRequest

SERVERS = (Role.SERVER_A, Role.SERVER_B)
_EPOCH = bytes(16)

Words = NDArray[np.int64]


def header_bytes(header: SignedHeader) -> bytes:
    """What crosses of a header: what was signed, the signature and its certificates."""
    return b"".join([header.signed, header.signature.value, *header.signature.certificates])


@dataclass
class View:
    """One server's: what it receives, is dealt, sends and stores, and what it expands of it."""

    role: Role
    headers: list[Submission] = field(default_factory=list)
    held: dict[ClientId, Submission] = field(default_factory=dict)
    shares: dict[ClientId, bytes] = field(default_factory=dict)
    """What each got alone: A its seeds, B the bodies, salt_h and b."""
    received: list[Frame] = field(default_factory=list)
    sent: list[Frame] = field(default_factory=list)
    dealt: list[tuple[DealRequest, Words]] = field(default_factory=list)
    dealer_key: bytes = b""
    row_keys: dict[bytes, bytes] = field(default_factory=dict)
    """By context."""
    shares_of_r: dict[bytes, int] = field(default_factory=dict)
    """By context: this server's."""
    stored: dict[str, bytes] = field(default_factory=dict)
    told: list[bytes] = field(default_factory=list)
    """What a careless scheme tells it besides."""
    outcome: Finished | None = None

    @property
    def other(self) -> Role:
        """The other server."""
        return Role.SERVER_B if self.role is Role.SERVER_A else Role.SERVER_A

    def header(self, client: ClientId) -> SignedHeader:
        """As it came."""
        return next(h.header for h in self.headers if h.context.client == client)

    def place(self, client: ClientId) -> int:
        """Where a client's submission is in the only batch."""
        return sorted(self.held).index(client)

    def mask(self, client: ClientId, dimension: int) -> Words:
        """This server's own mask of a client's update, ``[d] int64``."""
        return self.held[client].mask().words(dimension)

    def body(self, client: ClientId) -> tuple[bytes, Words]:
        """salt_h and b: as B sent it on, as A received it."""
        frames = self.received if self.role is Role.SERVER_A else self.sent
        whole = self.messages(frames, "body/")[self.place(client)]
        return whole[:SALT_BYTES], from_bytes(whole[SALT_BYTES : -len(b"w")])

    def expanded(self, client: ClientId, dimension: int) -> Words:
        """This server's share of a client's update, ``[d] int64``: a_A at A, b + a_B at B."""
        mask = self.mask(client, dimension)
        return mask if self.role is Role.SERVER_A else mask + self.body(client)[1]

    def messages(self, frames: list[Frame], part: str) -> list[bytes]:
        """Whole messages of the steps that contain ``part``."""
        found, pieces = [], b""
        for frame in frames:
            if part in frame.step:
                pieces += frame.payload
                if frame.last:
                    found.append(pieces)
                    pieces = b""
        return found

    def compared(self, frames: list[Frame], place: int, clients: int, width: int) -> list[Words]:
        """Of each exchange of the decision, the words that are about one client.

        The seven ANDs that take the sign bits have a word a value, in some rows; those of the
        conjunction have a row a client, for each of two operands; the last message a word a client.
        """
        *ands, opened = (from_bytes(m) for m in self.messages(frames, "decide/"))
        signs, conjunction = ands[:7], ands[7:]
        rows = [each.reshape(-1, clients, width)[:, place] for each in signs]
        rows += [each.reshape(2, clients, -1)[:, place] for each in conjunction]
        return [np.ascontiguousarray(each) for each in (*rows, opened[place])]

    def triples(self, number: int = 0) -> list[BinaryTriple]:
        """What this server expands of a batch's binary triples."""
        request, corrections = self.dealt[number]
        dealt = DealtRandomness(self.role, Secret(self.dealer_key), request, corrections)
        return list(dealt.binary_triples())

    def blobs(self) -> dict[str, bytes]:
        """Every byte of the view up to the other's noisy share, by where it was seen."""
        blobs = {f"share of {client}": share for client, share in self.shares.items()}
        for number, each in enumerate(self.headers):
            opening = each.seed.reveal() + each.salt.reveal()
            blobs[f"header {number}"] = header_bytes(each.header) + opening
        for name, frames in (("received", self.received), ("sent", self.sent)):
            for number, frame in enumerate(frames):
                blobs[f"{name} {number} {frame.step}"] = frame.step.encode() + frame.payload
        blobs["dealer key"] = self.dealer_key
        blobs |= {f"row key {ctx.hex()[:8]}": key for ctx, key in self.row_keys.items()}
        for ctx, share in self.shares_of_r.items():
            blobs[f"share of r {ctx.hex()[:8]}"] = to_bytes(np.array([share]))
        for number, (_, corrections) in enumerate(self.dealt):
            blobs[f"corrections {number}"] = to_bytes(corrections)
            for place, triple in enumerate(self.triples(number)):
                words = np.concatenate([w.reshape(-1) for w in (triple.a, triple.b, triple.c)])
                blobs[f"triple {number} {place}"] = to_bytes(words)
        for client in self.held:
            d = self.body(client)[1].size
            blobs[f"mask of {client}"] = to_bytes(self.mask(client, d))
            blobs[f"expanded share of {client}"] = to_bytes(self.expanded(client, d))
        blobs |= {f"told {number}": told for number, told in enumerate(self.told)}
        return blobs | {f"file {name}": data for name, data in self.stored.items()}

    def salts(self, client: ClientId) -> list[bytes]:
        """All short strings that it has seen and could try as a salt."""
        header, held = self.header(client), self.held[client]
        salts = [held.salt, held.seed]
        found = [b"", bytes(32), *(s.reveal() for s in salts), self.body(client)[0]]
        found += [header.context.nonce, header.context.task.value, header.context.digest.value]
        found += [header.commitment_a.value, header.commitment_b.value, header.body_digest.value]
        found += [self.dealer_key, *self.row_keys.values(), *self.told]
        for frames in (self.received, self.sent):
            found += [m for m in self.messages(frames, "") if len(m) == SALT_BYTES]
        return [salt for salt in found if len(salt) in (0, 32)]


@dataclass
class DealerView:
    """The dealer's: what it is asked, what it draws, and the masks that it computes."""

    asked: list[tuple[Role, SquareRequest]] = field(default_factory=list)
    batches: list[tuple[Role, DealRequest, Words]] = field(default_factory=list)
    """Requests with the correction words that went out."""
    keys: dict[Role, bytes] = field(default_factory=dict)
    row_keys: dict[bytes, bytes] = field(default_factory=dict)
    shares_of_r: dict[bytes, dict[Role, int]] = field(default_factory=dict)
    """By context and server."""
    log: list[str] = field(default_factory=list)
    """What was logged while it worked."""
    told: list[bytes] = field(default_factory=list)
    """What a careless scheme tells it besides."""

    role = Role.DEALER

    def halves(self) -> Iterator[dict[Role, SquareRequest]]:
        """What both servers asked about each context, in the order of A's asking."""
        of_b = {r.context: r for role, r in self.asked if role is Role.SERVER_B}
        for role, request in self.asked:
            if role is Role.SERVER_A:
                yield {Role.SERVER_A: request, Role.SERVER_B: of_b[request.context]}

    def masks(self, half: dict[Role, SquareRequest], dimension: int) -> tuple[Words, Words]:
        """a_A and a_B of one context, ``[d] int64`` each."""
        of_a, of_b = (
            mask_stream(
                half[role].seed,
                role,
                Digest(half[role].context),
                Digest(half[role].commitment_a),
                Digest(half[role].commitment_b),
            ).words(dimension)
            for role in SERVERS
        )
        return of_a, of_b

    def triples(self, role: Role) -> list[BinaryTriple]:
        """The first batch's binary triples, as one server has them."""
        request, words = next((r, w) for to, r, w in self.batches if to is role)
        return list(DealtRandomness(role, Secret(self.keys[role]), request, words).binary_triples())

    def blobs(self, dimension: int) -> dict[str, bytes]:
        """Every byte of the view, by where it was seen."""
        blobs = {f"key of {role.value}": key for role, key in self.keys.items()}
        for number, (role, square) in enumerate(self.asked):
            blobs[f"square {number} {role.value}"] = square_request_to_wire(
                square, _EPOCH
            ).SerializeToString()
        for number, (role, batch, words) in enumerate(self.batches):
            blobs[f"batch {number} {role.value}"] = request_to_wire(
                batch, role.value, _EPOCH
            ).SerializeToString() + to_bytes(words)
        for number, half in enumerate(self.halves()):
            ctx = half[Role.SERVER_A].context
            of_a, of_b = self.masks(half, dimension)
            r = dot(of_a + of_b, of_a + of_b)
            shares = self.shares_of_r[ctx]
            assert signed(sum(shares.values())) == r
            blobs[f"masks {number}"] = b"".join(map(to_bytes, (of_a, of_b, of_a + of_b)))
            blobs[f"r {number}"] = to_bytes(np.array([r, *shares.values()]))
            blobs[f"row key {number}"] = self.row_keys[ctx]
        blobs["log"] = "\n".join(self.log).encode()
        return blobs | {f"told {number}": told for number, told in enumerate(self.told)}

    def salts(self) -> list[bytes]:
        """All short strings that it has seen and could try as a salt."""
        found = [b"", bytes(32), *self.keys.values(), *self.row_keys.values(), *self.told]
        for _, square in self.asked:
            found += [square.seed.reveal(), square.salt.reveal(), square.context]
            found += [square.task.value, square.commitment_a, square.commitment_b]
        for _, batch, _ in self.batches:
            found += [batch.nonces[:32], batch.nonces[32:]]
        return [salt for salt in dict.fromkeys(found) if len(salt) in (0, 32)]


@dataclass(eq=False)
class Watched:
    """One round, as each party saw it."""

    a: View
    b: View
    dealer: DealerView
    log: str = ""
    """Of all parties together: each view is searched with all of it."""

    def __iter__(self) -> Iterator[View]:
        return iter((self.a, self.b))

    def within_reach(self) -> dict[str, bytes]:
        """What might come to a dealer that looks further: all headers, and both servers' disks."""
        blobs = {f"header {n}": header_bytes(h.header) for n, h in enumerate(self.b.headers)}
        for view in self:
            blobs |= {f"{view.role.value} {name}": data for name, data in view.stored.items()}
        return blobs
