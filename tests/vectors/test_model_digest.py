"""Pinned bytes: a model's digest and its start must never change between versions."""

import hashlib
import struct

import numpy as np

from precad.common.description import ModelSection, Parameter
from precad.common.identifiers import Digest
from precad.common.model import initial_vector, model_digest

PARAMETERS = (Parameter(name="w", shape=(2, 3)), Parameter(name="b", shape=(2,)))
TASK = Digest(bytes(range(32)))
THETA = np.array([0.0, -0.0, 1.5, -2.25, 1e-300, 3.0, 0.1, -7.0])


def part(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def word(value: int) -> bytes:
    return struct.pack("<Q", value)


def test_the_digest_is_sha256_of_these_bytes() -> None:
    w = part(b"precad/v1/tensor") + part(b"w") + part(word(2)) + part(word(3))
    b = part(b"precad/v1/tensor") + part(b"b") + part(word(2))
    header = part(b"precad/v1/model") + part(bytes(range(32))) + part(word(5)) + part(w) + part(b)
    expected = hashlib.sha256(header + word(8) + struct.pack("<8d", *THETA)).hexdigest()
    found = str(model_digest(TASK, 5, PARAMETERS, THETA))
    assert found == expected
    assert found == "4c50237391f7e6dc54998ca70ca666c8ab4f95294a2346410d5e2460d74e4ead"


def test_the_digest_tells_everything_apart() -> None:
    renamed = (Parameter(name="v", shape=(2, 3)), PARAMETERS[1])
    reshaped = (Parameter(name="w", shape=(3, 2)), PARAMETERS[1])
    unsigned = np.where(THETA == 0, 0.0, THETA)
    digests = {
        model_digest(TASK, 5, PARAMETERS, THETA),
        model_digest(TASK, 6, PARAMETERS, THETA),
        model_digest(Digest(bytes(32)), 5, PARAMETERS, THETA),
        model_digest(TASK, 5, renamed, THETA),
        model_digest(TASK, 5, reshaped, THETA),
        model_digest(TASK, 5, PARAMETERS, unsigned),
        model_digest(TASK, 5, PARAMETERS, np.nextafter(THETA, 9.0)),
    }
    assert len(digests) == 7


def test_a_uniform_start_is_pinned() -> None:
    section = ModelSection(parameters=PARAMETERS, initial="uniform", initial_seed=42)
    context = part(b"precad/v1/initial-parameters") + part(word(42)) + part(b"w")
    words = struct.unpack("<6Q", hashlib.shake_256(context).digest(48))
    expected = [((word >> 11) - 2**52) / 2**52 / 3**0.5 for word in words] + [0.0, 0.0]
    assert initial_vector(section).tolist() == expected
    assert expected[0] == 0.24826077858897005
