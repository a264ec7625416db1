"""What a server that cheats knows before it hears a word, and whether all that it heard was that.

From what both servers and the owners noted (``cheat.py``), on real processes and in simulated time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.faults.deviations import fields_of

from precad.aggregator.collect.matching import Alike, Ask, HeldList, Offer, Places
from precad.aggregator.rounds.aggregator import CoinKey
from precad.aggregator.rounds.start_attempt import commitment_to
from precad.aggregator.server_messages import (
    Body,
    CoinCommitment,
    CoinOpening,
    CoinReveal,
    CoinState,
    HeadBody,
    Position,
    SetCheck,
    SignedMessage,
)
from precad.aggregator.validate.check_by_proof import shape_of, words_bytes
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.prime_field import arithmetic
from precad.common.proof_shape import P
from precad.common.share.submission import body_hasher
from precad.common.task import Task
from precad.common.wire.messages import decode
from precad.norm_check.norm_proof import ProofWords

Note = Mapping[str, Any]
CANDIDATES = {"ward-0": "nothing", "ward-1": "longest"}
"""Who holds which of two updates, as far apart as the bound allows (``cheat.candidate``)."""
OWNERS = [ClientId(name) for name in CANDIDATES]
COHORT = Places(OWNERS)
COIN_BYTES = 32
"""Of a commitment to a coin, and of a coin: nothing of an update is in either."""


@dataclass(frozen=True)
class Message:
    """What a server sent."""

    step: str
    pieces: list[bytes]
    attempt: int
    contexts: list[str]
    """Digests of the submissions that its newest coin is about."""
    coin: str
    """The newest, in hexadecimal."""

    @property
    def payload(self) -> bytes:
        """All of it."""
        return b"".join(self.pieces)


def messages(notes: Sequence[Note], since: int = 0) -> Iterator[Message]:
    """Whole ones, of which this note or a later one is the last piece."""
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
    """What the bad server knows before it hears a word.

    Args:
        honest: the other server.
        task: what they train.
        coin_key: the honest server's: what it says of a version's coin follows from the version.
    """

    def __init__(self, honest: Role, task: Task, coin_key: CoinKey) -> None:
        self.role = honest
        self.task = task
        self.coin_key = coin_key
        self.words: dict[tuple[str, str], ProofWords] = {}
        """The bad server's own, by submission and coin."""
        self.possible: dict[str, list[str]] = {}
        """Sets that may turn out valid, by their digests."""
        self.signed: set[str] = set()
        self.bodies: dict[str, str] = {}
        """By submission, the hash of the body that its owner signed."""
        self.heads: dict[int, bytes] = {}

    def take(self, notes: Iterable[Note]) -> None:
        """What the bad server and the owners noted: their signed headers lie at both servers."""
        for note in notes:
            match note:
                case {"answered": of, "coin": coin, "wires": wires, "value": value, "zero": zero}:
                    own = ProofWords(np.array(wires, dtype=np.uint64), value, zero)
                    self.words[of, coin] = own
                case {"possible": digest, "clients": clients}:
                    self.possible[digest] = clients
                case {"commitment": commitment, "context": context, "body": body}:
                    self.signed.add(commitment)
                    self.bodies[context] = body
                case {"sent": "head", "attempt": attempt, "instead_of": own}:
                    self.heads[attempt] = decode("SignedMessage", bytes.fromhex(own))["body"]

    def lacks(self, heard: Sequence[Message], *, own_secret: bool) -> bool:
        """Whether the bad server hasn't got yet to what it would know without having heard it."""
        answered = {
            (of, each.coin) for each in heard if each.step == "proof" for of in each.contexts
        }
        return not answered <= self.words.keys() or not (
            self.possible.keys() >= {each["digest"] for each in _sets(heard, own_secret=own_secret)}
        )

    def foresaw(self, heard: Sequence[Message], *, own_secret: bool) -> int:
        """Check that nothing was in it that the bad server hadn't known.

        Args:
            heard: what the honest server sent.
            own_secret: whether the servers salt sets with one secret.

        Returns:
            How many submissions' words were in it.
        """
        for said in _sets(heard, own_secret=own_secret):
            assert said["count"] == len(self.possible[said["digest"]])
        found = 0
        for each in heard:
            match each.step:
                case "proof":
                    self.answers(each)
                    found += len(each.contexts)
                case "proof-coin":
                    assert len(each.payload) == COIN_BYTES
                case "body":
                    self.body(each.pieces)
                case "valid-set":
                    pass
                case step:
                    self.foreseen(step, each.payload, each.attempt)
        return found

    def answers(self, said: Message) -> None:
        """Value and zero of each follow from the wires and the bad server's own, true words."""
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
            # Before the link's first attempt: who it is, where it stands, and fresh randomness.
            assert step in BEFORE, step
            if step == "position":
                Position.from_bytes(payload)
            return
        check = _FORESEEN.get(step)
        assert check is not None, f"a message that nobody foresaw: {step}"
        check(self, payload, attempt)

    def body(self, pieces: list[bytes]) -> None:
        """What server B forwards is what an owner has signed, and it alone."""
        salt, *words, end = pieces
        if end == b"w":
            b = b"".join(words)
            assert any(
                body_hasher(Digest(bytes.fromhex(ctx)), Secret(salt)).update(b).hexdigest() == body
                for ctx, body in self.bodies.items()
            )


BEFORE = {
    "position", "remembered", "roster", "roster-seal", "set-secret", "dealer", "nonce", "evidence",
    "history", "void", "transfer", "model-bytes", "transferred", "word", "lost", "unknown",
    # Where a break is mended, on with the release (`check_what_left` says what of).
    "head", "countersignature", "noisy-share", "model", "kept",
}  # fmt: skip


def _sets(heard: Sequence[Message], *, own_secret: bool) -> list[dict[str, Any]]:
    """What was said of the valid set, where that can be known."""
    sets = [each.payload for each in heard if each.step == "valid-set" and own_secret]
    return [SetCheck.from_bytes(each).model_dump() for each in sets]


def signed(seal: bytes | SignedMessage, body: type[Body]) -> Body:
    """What a server signed, whoever it was."""
    read = SignedMessage.from_bytes(seal) if isinstance(seal, bytes) else seal
    return body.from_bytes(bytes.fromhex(read.body))


def _coin_commitment(known: Known, payload: bytes, _: int) -> None:
    body = signed(CoinState.from_bytes(payload).commitment, CoinCommitment)
    opening = known.coin_key.opening(known.task.digest, body.version)
    assert body == commitment_to(opening, known.role)


def _coin_opening(known: Known, payload: bytes, _: int) -> None:
    body = signed(CoinReveal.from_bytes(payload).opening, CoinOpening)
    assert body == known.coin_key.opening(known.task.digest, body.version)


def _names(step: str) -> Callable[[Known, bytes, int], None]:
    def check(_: Known, payload: bytes, __: int) -> None:
        said = fields_of(step, payload)[1]
        assert sum(said.get("clients", ())) <= len(CANDIDATES)
        assert set(said) <= {"attempt", "clients", "model", "over", "doubt", "refusal",
                             "operators", "used", "count"}  # fmt: skip

    return check


def _ask(_: Known, payload: bytes, __: int) -> None:
    Ask.from_bytes(payload)


def _alike(_: Known, payload: bytes, __: int) -> None:
    assert set(COHORT.clients(Alike.from_bytes(payload).clients)) <= set(OWNERS)


def _offer(known: Known, payload: bytes, _: int) -> None:
    offered = Offer.from_bytes(payload)
    assert set(COHORT.clients(offered.clients)) <= set(OWNERS)
    assert set(offered.signed) <= known.signed


def _held(known: Known, payload: bytes, _: int) -> None:
    held = HeldList.from_bytes(payload)
    assert len(held.reasons) <= len(OWNERS)
    assert set(held.signed) <= known.signed


def _head(known: Known, payload: bytes, attempt: int) -> None:
    # The ledger's own chain is salted: `head` is 32 bytes of its salts to everybody else.
    body = signed(payload, HeadBody)
    assert (body.task, body.attempt) == (str(known.task.digest), attempt)
    assert body.valid_set in known.possible


def _countersignature(known: Known, payload: bytes, attempt: int) -> None:
    assert decode("SignedMessage", payload)["body"] == known.heads[attempt]


def _after_noise(*_: object) -> None:
    """Noisy shares, and what follows from both of them."""


_FORESEEN: dict[str, Callable[[Known, bytes, int], None]] = {
    "coin-commitment": _coin_commitment,
    "coin-opening": _coin_opening,
    "cohort": _names("cohort"),
    "ask": _ask,
    "alike": _alike,
    "pairs": _names("pairs"),
    "opened": _names("opened"),
    "offer": _offer,
    "held": _held,
    "head": _head,
    "countersignature": _countersignature,
    "noisy-share": _after_noise,
    "model": _after_noise,
    "kept": _after_noise,
}
