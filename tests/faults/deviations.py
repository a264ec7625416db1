"""What a server that cheats does otherwise: each by a name, and how it may end."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from tests.rig.documents import Document

from precad.common.errors import PeerViolation
from precad.common.identifiers import ATTEMPTS, ClientId, Role, Secret
from precad.common.proof_shape import P
from precad.common.ring import SALT_BYTES
from precad.common.wire.messages import decode, encode
from precad.norm_check.dealing import SquareRequest

VICTIM = ClientId("ward-0")
POISON = 2**25
"""Every coordinate of the noisy sum that a server chooses which speaks last: within
what a sum may be."""

Send = Callable[[bytes], Sequence[bytes]]
UNKNOWN_FIELD = b"\xf8\x07\x01"  # Number 127, which no message has
MESSAGES = {
    "position": "Position",
    "pairs": "WorkerCount",
    "opened": "OpenedCount",
    "valid-set": "SetCheck",
    "held": "HeldList",
    "offer": "Offer",
}


# --- what it sends to the other server
# -----------------------------------------------------------


def flipped(place: int | None = None) -> Send:
    def flip(data: bytes) -> Sequence[bytes]:
        if not data:
            return [b"\0"]
        at = 8 * (len(data) // 2) if place is None else place
        changed = bytearray(data)
        changed[at // 8] ^= 0x80 >> at % 8
        return [bytes(changed)]

    return flip


def fields_of(step: str, data: bytes) -> tuple[str, Document]:
    if step != "cohort":
        return MESSAGES[step], decode(MESSAGES[step], data)
    with suppress(PeerViolation):
        proposal = decode("Cohort", data)
        if proposal["model"]:
            return "Cohort", proposal
    return "Verdict", decode("Verdict", data)


def edited(step: str, **fields: object) -> Send:
    """Some fields otherwise, or one that it hasn't; functions get what was."""

    def edit(data: bytes) -> Sequence[bytes]:
        name, said = fields_of(step, data)
        if not fields.keys() <= said.keys():
            return [data + UNKNOWN_FIELD]
        for field, value in fields.items():
            said[field] = value(said[field]) if callable(value) else value
        return [encode(name, said)]

    return edit


def at_word(number: int, change: Callable[[int], int]) -> Send:
    """One word otherwise: 0 is the first wire; −2 the last value, −1 the last zero."""

    def changed(data: bytes) -> Sequence[bytes]:
        at = 1 + 8 * number if number >= 0 else len(data) + 8 * number
        word = change(int.from_bytes(data[at : at + 8], "little")).to_bytes(8, "little")
        return [data[:at] + word + data[at + 8 :]]

    return changed


def one_more(word: int) -> int:
    return (word + 1) % P


def in_salt(send: Send) -> Send:
    return lambda data: send(data) if len(data) == SALT_BYTES else [data]


def in_words(send: Send) -> Send:
    """In the pieces of b, not in what goes before or behind them."""
    return lambda data: send(data) if len(data) > SALT_BYTES else [data]


def others_signed(message: str, listed: str, **instead: list[int]) -> Send:
    """As if clients had signed something else for this server, with lists as long."""

    def other(data: bytes) -> Sequence[bytes]:
        said = decode(message, data)
        number = len(said[listed])
        fields = {name: value * number for name, value in instead.items()}
        return [encode(message, said | fields | {"signed": [b"\xab" * 32] * number})]

    return other


def without_the_first(data: bytes) -> Sequence[bytes]:
    said = decode("HeldList", data)
    held = 0 if said["reasons"][0] else 1
    return [
        encode(
            "HeldList",
            {"reasons": said["reasons"][1:], "signed": said["signed"][held:]},
        )
    ]


SILENT: Send = lambda _: ()  # noqa: E731
TWICE: Send = lambda data: (data, data)  # noqa: E731
SHORT: Send = lambda data: (data[:-1],)  # noqa: E731
LONG: Send = lambda data: (data + b"\0",)  # noqa: E731
EMPTY: Send = lambda _: (b"",)  # noqa: E731


@dataclass(frozen=True)
class Deviation:
    sends: Mapping[str, Send] | None = (
        None  # Instead of the pieces of these steps' messages
    )
    asks: Callable[[SquareRequest], Sequence[SquareRequest]] | None = (
        None  # The dealer, instead
    )
    deaf: bool = False  # What the dealer refuses, it doesn't hear
    own_value: Callable[[int], int] | None = None  # Taken for its own value of a proof
    turned: bool = False  # It decides on the submissions in the other order
    lists: bool = (
        False  # It matches nothing before collection closes: all is on the last lists
    )
    denies: bool = (
        False  # It says that it holds nothing good of the victim's, and acts so
    )
    hangs_up: bool = False  # It ends the link as soon as it has heard the words
    noiseless: bool = False  # It leaves its own noise out
    speaks_last: bool = (
        False  # Its noisy share, and the model, chosen after the other's
    )
    other_model: bool = False  # It shows owners another model, or another digest of it
    other_bytes: bool = False  # Than the model's whose digest it says
    other_step: Literal["bytes", "digest"] | None = (
        None  # Another step, under the right digest or under its own
    )


IN_SET_UP = frozenset(
    {"position", "remembered", "roster", "set-secret", "dealer", "nonce"}
)
IN_A_ROUND = (
    *("coin-commitment", "coin-opening", "cohort", "pairs", "held", "opened", "decide"),
    *("proof-coin", "proof", "valid-set", "head", "countersignature", "noisy-share"),
    *("model", "kept"),
)
BY_A, BY_B = ("ask", "alike"), ("offer", "body")


def _of(step: str, send: Send) -> Deviation:
    return Deviation(sends={step: send}, lists=step == "held")


DEVIATIONS: dict[str, Deviation] = {
    **{
        # At a link's beginning the first, which every reader looks at; of the last
        # lists in an outcome's code: "a list of other digests" is about the rest.
        f"{step} with a bit flipped": _of(
            step, flipped(0 if step in IN_SET_UP else 16 if step == "held" else None)
        )
        for step in (*sorted(IN_SET_UP), *IN_A_ROUND, *BY_A, *BY_B)
    },
    **{f"{step} never": _of(step, SILENT) for step in (*IN_A_ROUND[2:], *BY_A, *BY_B)},
    **{
        f"{step} twice": _of(step, TWICE)
        for step in (
            "cohort",
            "held",
            "decide",
            "proof",
            "valid-set",
            "noisy-share",
            "body",
        )
    },
    # Lists.
    "a stranger in the cohort": _of("cohort", edited("cohort", clients=[1, 9])),
    "an attempt that was used": _of(
        "cohort", edited("cohort", attempt=lambda number: number - 1)
    ),
    "another model in the cohort": _of("cohort", edited("cohort", model=b"\xab" * 32)),
    "a list of other digests": _of(
        "held", others_signed("HeldList", "reasons", reasons=[0])
    ),
    "a list without the first": _of("held", without_the_first),
    "digests offered that nobody signed": _of(
        "offer", others_signed("Offer", "clients")
    ),
    "an owner alike who wasn't offered": _of(
        "alike", lambda _: [encode("Alike", {"clients": [1]})]
    ),
    "the victim's submission denied": Deviation(lists=True, denies=True),
    "more opened than there were attempts": _of(
        "opened", edited("opened", count=ATTEMPTS)
    ),
    "more opened than there are numbers": _of(
        "opened", edited("opened", count=2**63 - 1)
    ),
    "more opened before": _of("position", edited("position", opened=ATTEMPTS)),
    "the last number that there is": _of("cohort", edited("cohort", attempt=ATTEMPTS)),
    "a number too large": _of("cohort", edited("cohort", attempt=2**63 - 1)),
    # The forwarded body.
    "another salt of the body": _of("body", in_salt(flipped())),
    "a body with a bit flipped": _of("body", in_words(flipped())),
    "a body one word short": _of("body", in_words(lambda data: [data[:-8]])),
    "a body one word long": _of("body", in_words(lambda data: [data + bytes(8)])),
    "a body of zeros": _of("body", in_words(lambda data: [bytes(len(data))])),
    # Bits.
    "bits one byte short": _of("decide", SHORT),
    "bits one byte long": _of("decide", LONG),
    "no bits": _of("decide", EMPTY),
    # Words of proofs.
    "a wire changed": _of("proof", at_word(0, one_more)),
    "the last value changed": _of("proof", at_word(-2, one_more)),
    "the last zero changed": _of("proof", at_word(-1, one_more)),
    "a word of p": _of("proof", at_word(0, lambda _: P)),
    "the largest word": _of("proof", at_word(-1, lambda _: 2**64 - 1)),
    "words one byte short": _of("proof", SHORT),
    "words one byte long": _of("proof", LONG),
    "no words": _of("proof", EMPTY),
    "the first part dropped": _of("proof", lambda data: [b"d" + data[1:]]),
    "neither whole nor dropped": _of("proof", lambda data: [b"x" + data[1:]]),
    "a coin one byte short": _of("proof-coin", SHORT),
    "a coin one byte long": _of("proof-coin", LONG),
    "another value taken": Deviation(own_value=one_more),
    "the other order": Deviation(turned=True),
    "gone with the words": Deviation(hangs_up=True),
    # To the dealer.
    "another seed": Deviation(asks=lambda r: [replace(r, seed=Secret.random())]),
    "another salt": Deviation(asks=lambda r: [replace(r, salt=Secret.random())]),
    "another commitment to A": Deviation(
        asks=lambda r: [replace(r, commitment_a=bytes(32))]
    ),
    "another commitment to B": Deviation(
        asks=lambda r: [replace(r, commitment_b=bytes(32))]
    ),
    "another context": Deviation(
        asks=lambda r: [replace(r, context=secrets.token_bytes(32))]
    ),
    "a later attempt": Deviation(asks=lambda r: [replace(r, attempt=r.attempt + 1)]),
    "asked twice": Deviation(asks=lambda r: [r, r], deaf=True),
    "not asked": Deviation(asks=lambda _: []),
    # What leaves with noise.
    "no noise of its own": Deviation(noiseless=True),
    "the last word on the model": Deviation(speaks_last=True),
    "another model shown": Deviation(other_model=True),
    "other bytes served": Deviation(other_bytes=True),
    "another step served": Deviation(other_step="bytes"),
    "another step signed": Deviation(other_step="digest"),
}


# --- how it may end
# ------------------------------------------------------------------------------

FAULT, REFUSED, DONE = "a named fault", "a refused submission", "a round like any other"

WITH_NOISE = (
    "no noise of its own",
    "the last word on the model",
    "noisy-share with a bit flipped",
)
SHOWN, SERVED = "another model shown", "other bytes served"
STEPS = ("another step served", "another step signed")
UNSEEN = {
    # The other server's correlated randomness, which proofs need none of.
    "nonce with a bit flipped",
    # What nobody relies on: it is said when all is done.
    "kept with a bit flipped",
    # The lists that close collection tell it all the same.
    "digests offered that nobody signed",
}
LOOSE = {
    # A flipped bit of a number, or of a name, may be a number or a name again.
    "opened with a bit flipped",
    # The message that nobody misses is the next round's fault.
    "kept never",
    "ask with a bit flipped",
    "alike with a bit flipped",
    "offer with a bit flipped",
    "asked twice",
    "remembered with a bit flipped",
    # The sum may be rounded to the same.
    "noisy-share with a bit flipped",
}
REFUSALS = {"the victim's submission denied": 1, "another value taken": 0}
OF_PROOFS = {"another value taken", "the other order", "gone with the words"}


def _of_the_other_check(name: str, validation: str) -> bool:
    steps = {"proof", "proof-coin"} if validation == "crypten" else {"decide", "body"}
    deviation = DEVIATIONS[name]
    if not steps.isdisjoint(deviation.sends or ()):
        return True
    return name in OF_PROOFS if validation == "crypten" else deviation.asks is not None


def ends_of(deviation: str, validation: str) -> set[str]:
    if validation == "crypten":
        if deviation.startswith(("decide ", "bits ", "no bits")):
            # Whatever is opened wrong may hold, or not.
            return {FAULT, REFUSED, DONE}
        if deviation.startswith("nonce "):
            # Both servers' parts of the triples no longer belong together.
            return {FAULT, REFUSED}
    if deviation in REFUSALS:
        return {REFUSED}
    if deviation in UNSEEN or deviation in (*WITH_NOISE[:2], SERVED, *STEPS):
        return {DONE}
    if deviation in LOOSE:
        return {FAULT, DONE}
    return {FAULT}


def deviations_of(cheater: Role, validation: str, *, workers: bool) -> list[str]:
    elsewhere = {*(BY_B if cheater is Role.SERVER_A else BY_A)}
    if validation == "crypten":
        # After A's list B names what is alike.
        elsewhere.discard("alike")
    only_a = {
        "a stranger in the cohort",
        "an attempt that was used",
        "another model in the cohort",
        "the last number that there is",
        "a number too large",
        *(["an owner alike who wasn't offered"] if "alike" in elsewhere else []),
    }
    only_b = {
        "digests offered that nobody signed",
        *(n for n in DEVIATIONS if "body" in n),
    }
    skip = (only_b if cheater is Role.SERVER_A else only_a) | {SHOWN}
    skip |= {name for name in DEVIATIONS if _of_the_other_check(name, validation)}
    if cheater is Role.SERVER_B:
        # It reckons with another coin than it said, and so disagrees with itself alone:
        # what the other says then is in
        # tests/integration/validation/test_cheating_server.py.
        skip |= {"proof-coin with a bit flipped", "the other order"}
    if not workers:
        skip |= {name for name in DEVIATIONS if name.startswith("pairs ")}
    return [
        name
        for name in DEVIATIONS
        if name not in skip and name.split(" ")[0] not in elsewhere
    ]
