"""Commitments to seeds, and the masks that seeds expand to."""

import itertools
import subprocess
import sys

import numpy as np
import pytest

from precad.common.identifiers import Digest, Role
from precad.common.secret import Secret
from precad.common.share.mask import commit, mask_stream, opens

CTX, OTHER_CTX = Digest(b"\1" * 32), Digest(b"\2" * 32)
SALT, SEED = Secret(b"\3" * 32), Secret(b"\4" * 32)
A, B = Role.SERVER_A, Role.SERVER_B


def test_a_commitment_opens_to_what_it_was_made_of() -> None:
    assert opens(commit(A, CTX, SALT, SEED), A, CTX, SALT, SEED)


@pytest.mark.parametrize(
    ("role", "ctx", "salt", "seed"),
    [
        (B, CTX, SALT, SEED),
        (A, OTHER_CTX, SALT, SEED),
        (A, CTX, Secret(b"\5" * 32), SEED),
        (A, CTX, SALT, Secret(b"\5" * 32)),
        (A, CTX, SEED, SALT),
    ],
    ids=["role", "context", "salt", "seed", "salt and seed exchanged"],
)
def test_a_commitment_opens_to_nothing_else(
    role: Role, ctx: Digest, salt: Secret, seed: Secret
) -> None:
    assert not opens(commit(A, CTX, SALT, SEED), role, ctx, salt, seed)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_commitment_to_a_seed_or_salt_of_another_length_never_opens(length: int) -> None:
    odd = Secret(bytes(length))
    assert not opens(commit(A, CTX, SALT, odd), A, CTX, SALT, odd)
    assert not opens(commit(A, CTX, odd, SEED), A, CTX, odd, SEED)


def test_every_part_of_what_a_mask_is_bound_to_gives_another_mask() -> None:
    c_a, c_b = Digest(b"\6" * 32), Digest(b"\7" * 32)
    uses = [
        (SEED, A, CTX, c_a, c_b),
        (SALT, A, CTX, c_a, c_b),
        (SEED, B, CTX, c_a, c_b),
        (SEED, A, OTHER_CTX, c_a, c_b),
        (SEED, A, CTX, c_b, c_b),
        (SEED, A, CTX, c_a, c_a),
        (SEED, A, CTX, c_b, c_a),
    ]
    masks = [mask_stream(*use).words(8) for use in uses]
    for one, other in itertools.combinations(masks, 2):
        assert not np.isin(one, other).any()


def test_a_mask_read_in_pieces_is_the_mask() -> None:
    whole = mask_stream(SEED, A, CTX, CTX, CTX).words(1000)
    stream = mask_stream(SEED, A, CTX, CTX, CTX)
    assert (np.concatenate([stream.words(n) for n in (1, 0, 900, 99)]) == whole).all()


def test_a_dealer_loads_nothing_else_of_a_submission() -> None:
    program = (
        "import sys, precad.common.share.mask\n"
        "print(*sorted(n for n in sys.modules if n.startswith('precad.common')))"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    shared = {n.removeprefix("precad.common") for n in out.stdout.split()}
    ground = {"", ".errors", ".identifiers", ".keystream", ".ring", ".secret", ".tls13"}
    assert shared == ground | {".share", ".share.mask"}
