"""A proof of a norm in Python's integers, as docs/soundness.md, part 4, has it: makes
proof.json.

    python tests/vectors/proof_reference.py > tests/vectors/proof.json

Nothing here is precad's, and nothing is fast: polynomials are interpolated point by
point.
"""

import hashlib
import hmac
import json
import re
import struct
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

P = 2**64 - 2**32 + 1
ROWS = 100
Words = list[int]
Document = dict[str, Any]


def spelled(tag: str, *parts: bytes | int) -> bytes:
    """The tag and each part with its length before it."""
    found = b""
    for part in (b"precad/v1/" + tag.encode(), *parts):
        data = struct.pack("<Q", part) if isinstance(part, int) else part
        found += struct.pack("<I", len(data)) + data
    return found


def hashed(tag: str, *parts: bytes | int) -> bytes:
    return hashlib.sha256(spelled(tag, *parts)).digest()


def derived(key: bytes, purpose: str, *context: bytes | int) -> bytes:
    """HKDF-SHA256 (RFC 5869) without a salt, one block."""
    extracted = hmac.digest(bytes(32), key, "sha256")
    return hmac.digest(extracted, spelled(purpose, *context) + b"\1", "sha256")


def ctr(key: bytes, counter: int, blocks: int) -> bytes:
    cipher = Cipher(algorithms.AES256(key), modes.CTR(counter.to_bytes(16, "big")))
    return cipher.encryptor().update(bytes(16 * blocks))


def stream(
    key: bytes, purpose: str, *context: bytes | int, size: int, start: int = 0
) -> Words:
    """Word i is the first below p of W_0[i], W_1[i] …"""
    own = derived(key, purpose, *context)
    block = start // 2
    raw = ctr(own, block, size // 2 + 2)
    found = []
    for i in range(start, start + size):
        (word,) = struct.unpack_from("<Q", raw, 8 * (i - 2 * block))
        for again in count(1):
            if word < P:
                break
            (word,) = struct.unpack_from(
                "<Q", ctr(own, (again << 64) + i // 2, 1), 8 * (i % 2)
            )
        found.append(word)
    return found


def packed(words: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(words)}Q", *words)


class Sizes:
    """Of everything, from d and β."""

    def __init__(self, d: int, beta: int) -> None:
        # 1, 2, …, 2^(w − 2) and 2B − 2^(w − 1), B = 8β, w = bitlength(2B − 1).
        width = (16 * beta - 1).bit_length()
        self.d, self.beta = d, beta
        self.weights = [2**i for i in range(width - 1)] + [16 * beta - 2 ** (width - 1)]
        self.slack = (beta**2).bit_length()
        self.bits = bits = ROWS * width + self.slack
        # N and c_w.
        _, *self.domain = min(
            (2 * n + 2 * c, n, c)
            for n in (2**log for log in range(2, 16))
            for c in range(8, 8 * max(d, bits), 8)
            if rows_of(d, c) + 2 * rows_of(bits, c) <= n - 1
        )


def rows_of(words: int, columns: int) -> int:
    return -(-words // columns)


def root(order: int) -> int:
    return pow(7, (P - 1) // order, P)


def weights_at(points: Sequence[int], t: int) -> Words:
    """Lagrange's basis polynomials over these points, at t."""
    found = []
    for i, point in enumerate(points):
        top = bottom = 1
        for j, another in enumerate(points):
            if i != j:
                top, bottom = top * (t - another) % P, bottom * (point - another) % P
        found.append(top * pow(bottom, -1, P) % P)
    return found


def powers(base: int, size: int) -> Words:
    return [pow(base, i, P) for i in range(size)]


# The client.


def laid_out(sizes: Sizes, x: Words, bits: Words, mu: Sequence[Words]) -> list[Words]:
    """The circuit's rows with inputs: X, then μ_1∘e, then μ_2∘e, each padded to whole
    rows."""
    _, c = sizes.domain
    found = []
    for vector in (
        x,
        *([m * e % P for m, e in zip(each, bits, strict=True)] for each in mu),
    ):
        padded = vector + [0] * (-len(vector) % c)
        found += [padded[start : start + c] for start in range(0, len(padded), c)]
    return found


def ternary(key: bytes, d: int) -> list[Words]:
    """The rows' entries: bit i of u minus bit i of v, for 64 coordinates after each
    other."""
    blocks = rows_of(d, 64)
    data = ctr(derived(key, "validate/rows"), 0, blocks * ROWS)
    masks = struct.unpack(f"<{2 * blocks * ROWS}Q", data)

    def entry(row: int, i: int) -> int:
        at = 2 * (i // 64 * ROWS + row)
        return int((masks[at] >> i % 64 & 1) - (masks[at + 1] >> i % 64 & 1))

    return [[entry(row, i) for i in range(d)] for row in range(ROWS)]


def written(sizes: Sizes, z: Words, squared: int) -> Words:
    """Bits of each z + B, the last one where it is 2^(w − 1) or more, and of β² −
    X·X."""
    found: Words = []
    width, last = len(sizes.weights), sizes.weights[-1]
    for each in z:
        number = each + 8 * sizes.beta
        assert 0 <= number < 16 * sizes.beta
        top = int(number >= 2 ** (width - 1))
        found += [(number - top * last) >> i & 1 for i in range(width - 1)] + [top]
    rest = sizes.beta**2 - squared
    assert 0 <= rest < 2**sizes.slack
    return found + [rest >> i & 1 for i in range(sizes.slack)]


def masked(words: Words, mask: Words) -> Words:
    return [(a - b) % P for a, b in zip(words, mask, strict=True)]


def client(given: Document) -> Document:
    sizes = Sizes(len(given["x"]), given["beta"])
    n, c = sizes.domain
    names = ("task", "model", "nonce", "seed", "salt", "salt_h", "mask_seed")
    task, model, nonce, seed, salt, salt_h, mask_seed = (
        bytes.fromhex(given[x]) for x in names
    )
    holder = given["seed_holder"].encode()
    openings = [bytes.fromhex(each) for each in given["openings"]]
    parts = [
        task,
        given["version"],
        given["attempt"],
        given["client"].encode(),
        model,
        nonce,
    ]
    ctx = hashed("proof-context", hashed("submission-context", *parts), *openings)
    commitment = hashed("seed-commitment", holder, ctx, salt, seed)

    def of(secret: bytes, purpose: str, size: int) -> Words:
        return stream(secret, f"proof/{purpose}", holder, ctx, commitment, size=size)

    x = [each % P for each in given["x"]]
    update = masked(x, of(seed, "x", sizes.d))
    h_x = blake3(spelled("proof-update", ctx, salt_h) + packed(update)).digest()
    rows_key = hashed("proof-rows", ctx, commitment, h_x)
    entries = ternary(rows_key, sizes.d)
    z = [sum(s * v for s, v in zip(row, given["x"], strict=True)) for row in entries]
    bits = written(sizes, z, sum(v * v for v in given["x"]))
    bits_share = masked(bits, of(seed, "e", sizes.bits))
    h_e = blake3(spelled("proof-bits", ctx, salt_h) + packed(bits_share)).digest()
    bits_key = hashed("proof-bits-key", rows_key, h_e)
    both = stream(bits_key, "proof/bits", size=2 * sizes.bits)
    mu = both[: sizes.bits], both[sizes.bits :]
    u = [
        (a + b) % P
        for a, b in zip(of(seed, "u", c), of(mask_seed, "u", c), strict=True)
    ]
    rows = [u, *laid_out(sizes, x, bits, mu)]
    values = [sum(v * v for v in row) % P for row in rows]
    points = powers(root(n), n)
    for k in range(n):
        weights = weights_at(points, pow(root(2 * n), 2 * k + 1, P))
        wires = [
            sum(w * row[i] for w, row in zip(weights, rows, strict=False))
            for i in range(c)
        ]
        values.append(sum(wire * wire for wire in wires) % P)
    proof = masked(values, of(seed, "h", len(values)))
    h_proof = blake3(
        spelled("proof-proof", ctx, salt_h, mask_seed) + packed(proof)
    ).digest()
    digests = commitment, h_x, h_e, h_proof
    signed = spelled("submission-signature-with-proof", *parts, *openings, *digests)
    signature = bytes.fromhex(given["signature"])
    certificates = [bytes.fromhex(each) for each in given["certificates"]]
    shares = {
        "seed": (of(seed, "x", sizes.d), of(seed, "e", sizes.bits), of(seed, "u", c)),
        "body": (update, bits_share, of(mask_seed, "u", c)),
    }
    proofs = {"seed": of(seed, "h", len(values)), "body": proof}
    made: Document = {"ctx": ctx, "commitment": commitment, "update_digest": h_x}
    made |= {"rows_key": rows_key, "bits_digest": h_e, "bits_key": bits_key}
    made |= {"proof_digest": h_proof, "signed": signed}
    made |= {
        "sizes": sizes,
        "z": z,
        "bits": bits,
        "mu": mu,
        "entries": entries,
        "values": values,
    }
    return made | {
        "whole_digest": hashed("whole-submission", signed, signature, *certificates),
        "words": update + bits_share + proof,
        "shares": {name: (*share, proofs[name]) for name, share in shares.items()},
    }


# The servers.


def answered(made: Document, holder: str, t: int, rho: Words) -> tuple[Words, int, int]:
    """One server's share of f(t), of h(t), and of the relations' sum."""
    sizes: Sizes = made["sizes"]
    n, c = sizes.domain
    x, bits, u, values = made["shares"][holder]
    one = int(holder == "seed")
    rows = [u, *laid_out(sizes, x, bits, made["mu"])]
    weights = weights_at(powers(root(n), n), t)
    wires = [
        sum(w * row[i] for w, row in zip(weights, rows, strict=False)) % P
        for i in range(c)
    ]
    second = weights_at(powers(root(2 * n), 2 * n), t)
    used = len(rows)
    of_values = second[::2][:used] + second[1::2]
    h_t = sum(w * v for w, v in zip(of_values, values, strict=True)) % P
    outputs, of_x, of_bits = values[1:used], rows_of(sizes.d, c), rows_of(sizes.bits, c)
    width = len(sizes.weights)
    slack = bits[ROWS * width :]
    relations = [
        sum(outputs[:of_x])
        + sum(2**i * e for i, e in enumerate(slack))
        - one * sizes.beta**2
    ]
    for r, mu in enumerate(made["mu"]):
        start = of_x + r * of_bits
        squared = sum(m * m * e for m, e in zip(mu, bits, strict=True))
        relations.append(sum(outputs[start : start + of_bits]) - squared)
    for k, entries in enumerate(made["entries"]):
        z = sum(s * v for s, v in zip(entries, x, strict=True))
        own = bits[k * width : (k + 1) * width]
        said = sum(w * e for w, e in zip(sizes.weights, own, strict=True))
        relations.append(z + one * 8 * sizes.beta - said)
    zero = sum(r * each for r, each in zip(rho, relations, strict=True)) % P
    return wires, h_t, zero


def transcript(given: Document) -> Document:
    """Everything that has a value, long ones by their SHA-256."""
    made = client(given)
    sizes: Sizes = made["sizes"]
    n, c = sizes.domain
    # Of a batch of this one submission.
    of_a, of_b = (bytes.fromhex(each) for each in given["coins"])
    batch, task = (
        hashed("proof-batch", made["whole_digest"]),
        bytes.fromhex(given["task"]),
    )
    commitment = hashed(
        "proof-coin", task, batch, given["attempt"], given["turn"], of_a
    )
    coin = hashed("proof-joint-coin", of_a, of_b, batch)
    key = derived(coin, "proof/query", made["whole_digest"])
    queries = (stream(key, "proof/query", again, size=4 + ROWS) for again in count())
    t, *rho = next(words for words in queries if pow(words[0], 2 * n, P) != 1)
    hexes = (
        "ctx",
        "commitment",
        "update_digest",
        "rows_key",
        "bits_digest",
        "bits_key",
    )
    found: Document = {
        "sizes": {
            "points": n,
            "columns": c,
            "bits": sizes.bits,
            "weights": sizes.weights,
        },
        **{
            name: made[name].hex()
            for name in (*hexes, "proof_digest", "signed", "whole_digest")
        },
        "z": made["z"],
        "bits": "".join(map(str, made["bits"])),
        **{f"{name}_words": of_long(made[name]) for name in ("values", "words")},
        "mu_words": of_long(made["mu"][0] + made["mu"][1]),
        "coin_commitment": commitment.hex(),
        "coin": coin.hex(),
        "t": t,
        "rho_words": of_long(rho),
    }
    both = {holder: answered(made, holder, t, rho) for holder in ("seed", "body")}
    for holder, (wires, h_t, zero) in both.items():
        message = b"w" + packed([*wires, h_t, zero])
        found[f"{holder}_answer"] = {
            "wires_words": of_long(wires),
            "value": h_t,
            "zero": zero,
            "message_sha256": hashlib.sha256(message).hexdigest(),
        }
    (w_a, h_a, zero_a), (w_b, h_b, zero_b) = both.values()
    squared = sum((a + b) ** 2 for a, b in zip(w_a, w_b, strict=True))
    assert (squared - h_a - h_b) % P == (zero_a + zero_b) % P == 0
    return found


def of_long(words: Sequence[int]) -> Document:
    """The first and last of many words, and the SHA-256 of them all, little-endian."""
    digest = hashlib.sha256(packed(words)).hexdigest()
    return {"count": len(words), "first": words[0], "last": words[-1], "sha256": digest}


def given_of(x: Words, beta: int, holder: str) -> Document:
    """Inputs: secrets are runs of bytes that anybody can write down."""

    def run(start: int) -> str:
        return bytes(range(start, start + 32)).hex()

    single = {"task": 1, "model": 2, "nonce": 3, "seed": 30, "salt": 40, "salt_h": 50}
    single |= {"mask_seed": 60, "signature": 70}
    double = {"openings": (10, 20), "certificates": (80, 90), "coins": (100, 110)}
    given: Document = {
        "x": x,
        "beta": beta,
        "seed_holder": holder,
        "client": "ward-3",
    }
    given |= {"version": 5, "attempt": 7, "turn": 0}
    given |= {name: run(start) for name, start in single.items()}
    return given | {
        name: [run(start) for start in starts] for name, starts in double.items()
    }


def keystream() -> Document:
    """A stream around the place of its first word of W_0 that isn't below p, which was
    searched."""
    key, place = bytes(range(32)), 3_716_396_515
    around = stream(key, "field-words", size=5, start=place - 2)
    first = stream(key, "field-words", size=3)
    found = {"key": key.hex(), "purpose": "field-words", "first": first}
    return found | {"rejected": place, "around": around}


def vectors() -> Document:
    long = [(-1) ** i * (3 * i % 50) for i in range(70)]
    cases = [
        given_of(long, 1 << 10, "server-a"),
        # The norm exactly β, at the other holder.
        given_of([3, -4, 0, 12, -84], 85, "server-b"),
        given_of([0], 1, "server-a"),
    ]
    return {
        "about": (
            "Proofs of norms, every input fixed; made by proof_reference.py beside it."
        ),
        "keystream": keystream(),
        "proofs": [{"given": each, "made": transcript(each)} for each in cases],
    }


def in_lines(values: Document) -> str:
    """JSON in which a list without structure has one line."""

    def on_one(found: re.Match[str]) -> str:
        return " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]")

    return re.sub(r"\[[^][{}]*\]", on_one, json.dumps(values, indent=1))


if __name__ == "__main__":
    sys.stdout.write(in_lines(vectors()) + "\n")
