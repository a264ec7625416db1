"""What a server that cheats knows before it hears a word; whether it heard more."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from tests.faults.deviations import fields_of
from tests.rig.documents import Document
from tests.rig.norm_check import shape_of

from precad.aggregator import server_messages as wire
from precad.aggregator.collect.matching import Alike, Ask, HeldList, Offer, Places
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rounds.start_attempt import commitment_to
from precad.aggregator.server_messages import Body
from precad.aggregator.validate.check_by_proof import words_bytes
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.proof_shape import P
from precad.common.submission import body_hasher
from precad.common.task import Task
from precad.common.wire.messages import decode
from precad.norm_check.norm_proof import ProofWords
from precad.norm_check.prime_field import arithmetic

Note = Document
CANDIDATES = {
    "ward-0": "nothing",
    "ward-1": "longest",
}  # Who holds which of two updates
OWNERS = [ClientId(name) for name in CANDIDATES]
COHORT = Places(OWNERS)


class Message(NamedTuple):
    step: str
    pieces: list[bytes]
    attempt: int
    contexts: list[str]  # Digests of the submissions that its newest coin is about
    coin: str  # The newest, in hexadecimal

    @property
    def payload(self) -> bytes:
        return b"".join(self.pieces)


def messages(notes: Sequence[Note], since: int = 0) -> Iterator[Message]:
    contexts: list[str] = []
    coin = ""
    bodies: dict[str, list[bytes]] = defaultdict(list)
    for number, note in enumerate(notes):
        if "decides" in note:
            contexts, coin = note["decides"], note["coin"]
        if "sent" not in note:
            continue
        name, piece = note["sent"], bytes.fromhex(note["payload"])
        step = name.split("/")[0]
        pieces = [piece]
        if step == "body":
            bodies[name].append(piece)
            if piece not in (b"w", b"d"):
                continue
            pieces = bodies.pop(name)
        if number >= since:
            yield Message(step, pieces, note["attempt"], contexts, coin)


class Known:
    def __init__(self, honest: Role, task: Task, coin_key: CoinKey) -> None:
        self.role, self.task, self.coin_key = honest, task, coin_key
        # The bad server's own words by submission and coin; by submission, its body's
        # hash.
        self.words: dict[tuple[str, str], ProofWords] = {}
        self.bodies: dict[str, str] = {}
        self.possible: dict[
            bytes, list[str]
        ] = {}  # Sets that may turn out valid, by their digests
        self.signed: set[bytes] = set()
        self.heads: dict[int, bytes] = {}

    def take(self, notes: Iterable[Note]) -> None:
        for note in notes:
            match note:
                case {
                    "answered": of,
                    "coin": coin,
                    "wires": wires,
                    "value": value,
                    "zero": zero,
                }:
                    own = ProofWords(np.array(wires, dtype=np.uint64), value, zero)
                    self.words[of, coin] = own
                case {"possible": digest, "clients": clients}:
                    self.possible[bytes.fromhex(digest)] = clients
                case {"commitment": commitment, "context": context, "body": body}:
                    self.signed.add(bytes.fromhex(commitment))
                    self.bodies[context] = body
                case {"sent": "head", "attempt": attempt, "instead_of": own}:
                    self.heads[attempt] = decode("SignedMessage", bytes.fromhex(own))[
                        "body"
                    ]

    def lacks(self, heard: Sequence[Message], *, own_secret: bool) -> bool:
        """Whether the bad server hasn't got yet to what it knows without hearing it."""
        proofs = [each for each in heard if each.step == "proof"]
        answered = {(of, each.coin) for each in proofs for of in each.contexts}
        sets = {each["digest"] for each in _sets(heard, own_secret=own_secret)}
        return not (answered <= self.words.keys() and sets <= self.possible.keys())

    def foresaw(self, heard: Sequence[Message], *, own_secret: bool) -> int:
        """Check that it had known all; how many submissions' words were in it."""
        for said in _sets(heard, own_secret=own_secret):
            assert said["count"] == len(self.possible[said["digest"]])
        for each in heard:
            match each.step:
                case "proof":
                    self.answers(each)
                case "proof-coin":
                    # A coin, or a commitment to one: nothing of an update is in either.
                    assert len(each.payload) == 32
                case "body":
                    self.body(each.pieces)
                case "valid-set":
                    pass
                case step:
                    self.foreseen(step, each.payload, each.attempt)
        return sum(len(each.contexts) for each in heard if each.step == "proof")

    def answers(self, said: Message) -> None:
        """Value and zero of each follow from the wires and its own, true words."""
        shape, math = shape_of(self.task), arithmetic()
        size = words_bytes(shape)
        assert len(said.payload) == size * len(said.contexts)
        for number, of in enumerate(said.contexts):
            data, own = said.payload[number * size :][:size], self.words[of, said.coin]
            assert data[:1] == b"w"
            words = np.frombuffer(data[1:], dtype="<u8").astype(np.uint64)
            wires = math.add(words[: shape.columns], own.wires)
            value = (math.dot(wires, wires) - own.value) % P
            assert (int(words[-2]), int(words[-1])) == (value, -own.zero % P)

    def foreseen(self, step: str, payload: bytes, attempt: int) -> None:
        """A message that has no part of an update in it: every field of it is known."""
        if attempt < 0 and step not in {"coin-commitment", "coin-opening", "cohort"}:
            # Before the link's first attempt: who it is, where it stands, and fresh
            # randomness.
            assert step in BEFORE, step
            if step == "position":
                wire.Position.from_bytes(payload)
            return
        match step:
            case "coin-commitment":
                body = signed(
                    wire.CoinState.from_bytes(payload).commitment, wire.CoinCommitment
                )
                opening = self.coin_key.opening(self.task.digest, body.version)
                assert body == commitment_to(opening, self.role)
            case "coin-opening":
                reveal = signed(
                    wire.CoinReveal.from_bytes(payload).opening, wire.CoinOpening
                )
                assert reveal == self.coin_key.opening(self.task.digest, reveal.version)
            case "cohort" | "pairs" | "opened":
                said = fields_of(step, payload)[1]
                assert sum(said.get("clients", ())) <= len(CANDIDATES)
                assert said.keys() <= FIELDS
            case "ask":
                Ask.from_bytes(payload)
            case "alike":
                assert set(COHORT.clients(Alike.from_bytes(payload).clients)) <= set(
                    OWNERS
                )
            case "offer":
                offered = Offer.from_bytes(payload)
                assert set(COHORT.clients(offered.clients)) <= set(OWNERS)
                assert set(offered.signed) <= self.signed
            case "held":
                held = HeldList.from_bytes(payload)
                assert len(held.reasons) <= len(OWNERS)
                assert set(held.signed) <= self.signed
            case "head":
                # The ledger's own chain is salted: `head` is 32 random bytes to
                # everybody else.
                head = signed(payload, wire.HeadBody)
                assert (head.task, head.attempt) == (self.task.digest.value, attempt)
                assert head.valid_set in self.possible
            case "countersignature":
                assert decode("SignedMessage", payload)["body"] == self.heads[attempt]
            case "noisy-share" | "model" | "kept":
                pass  # Noisy shares, and what follows from both of them
            case _:
                raise AssertionError(f"a message that nobody foresaw: {step}")

    def body(self, pieces: list[bytes]) -> None:
        """What server B forwards is what an owner has signed, and it alone."""
        salt, *words, end = pieces
        if end == b"w":
            b = b"".join(words)
            assert any(
                body_hasher(Digest(bytes.fromhex(ctx)), Secret(salt))
                .update(b)
                .hexdigest()
                == body
                for ctx, body in self.bodies.items()
            )


FIELDS = {
    "attempt",
    "clients",
    "model",
    "over",
    "doubt",
    "refusal",
    "operators",
    "used",
    "count",
}
BEFORE = {
    "position", "remembered", "roster", "roster-seal", "set-secret", "dealer", "nonce",
    "evidence", "history", "void", "transfer", "model-bytes", "transferred", "word",
    "lost", "unknown",
    # Where a break is mended, on with the release (`check_what_left` says what of).
    "head", "countersignature", "noisy-share", "model", "kept",
}  # fmt: skip


def _sets(heard: Sequence[Message], *, own_secret: bool) -> list[Document]:
    sets = [each.payload for each in heard if each.step == "valid-set" and own_secret]
    return [wire.SetCheck.from_bytes(each).model_dump() for each in sets]


def signed(seal: bytes | wire.SignedMessage, body: type[Body]) -> Body:
    read = wire.SignedMessage.from_bytes(seal) if isinstance(seal, bytes) else seal
    return body.from_bytes(read.body)
