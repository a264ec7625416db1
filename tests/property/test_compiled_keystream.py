"""AES-256-CTR of the library in common/kernel against OpenSSL's, byte for byte."""

import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import example, given
from hypothesis import strategies as st

from precad.common.kernel.kernel import NUMPY, VARIABLE, Fill, streams
from precad.common.keystream import Keystream
from precad.common.secret import Secret

KEY = bytes(range(32))
AT_ONCE = 256
"""Bytes that the library makes together."""


@pytest.fixture(scope="module")
def fills(library: Path | None) -> list[Fill]:
    """The library's; none where there is no compiler, or the processor can't run it."""
    return streams(library)


def openssl(key: bytes, start: int, length: int) -> bytes:
    # From the counter on that the first byte's block has.
    block, skipped = divmod(start, 16)
    cipher = Cipher(algorithms.AES256(key), modes.CTR(block.to_bytes(16, "big")))
    return cipher.encryptor().update(bytes(skipped + length))[skipped:]


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 2000), st.integers(0, 2000))
@example(KEY, 0, AT_ONCE)
@example(KEY, 15, AT_ONCE + 1)
@example(KEY, 2**32 * 16 - 16, 64)
@example(KEY, 2**63 - 8, 2000)
def test_the_bytes_are_those_of_openssl(
    fills: list[Fill], key: bytes, start: int, length: int
) -> None:
    for fill in fills:
        # Nothing before or behind is touched.
        out = bytearray(b"\xa5" * (length + 2))
        fill(key, start, memoryview(out)[1:-1])
        assert out == b"\xa5" + openssl(key, start, length) + b"\xa5"


def test_the_vector_of_the_standard(fills: list[Fill]) -> None:
    # FIPS 197, appendix C.3: the block 00112233…ff. It is no counter that a stream reaches, so
    # OpenSSL stands for it; the key is the standard's.
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    ecb = Cipher(algorithms.AES256(KEY), modes.ECB()).encryptor()
    assert ecb.update(block).hex() == "8ea2b7ca516745bfeafc49904b496089"
    for fill in fills:
        out = bytearray(16)
        fill(KEY, 0, memoryview(out))
        assert out == ecb.update(bytes(16))


def test_what_cannot_be_filled_is_refused(fills: list[Fill]) -> None:
    for fill in fills:
        for key, start in ((KEY[:31], 0), (KEY + b"x", 0), (KEY, -1), (KEY, 2**64 - 7)):
            with pytest.raises(ValueError, match=f"a key of {len(key)} bytes"):
                fill(key, start, memoryview(bytearray(8)))
        with pytest.raises(TypeError):
            fill(KEY, 0, memoryview(bytes(8)))
        with pytest.raises((TypeError, BufferError, ValueError)):
            fill(KEY, 0, memoryview(bytearray(16))[::2])


def test_a_stream_is_the_same_with_and_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (1, 15, 16, 0, 255, 256, 1 << 17, (1 << 17) + 3)
    program = (
        "from hashlib import sha256; from precad.common.keystream import Keystream; "
        "from precad.common.secret import Secret; "
        f"stream = Keystream(Secret(bytes(range(32))), 'p', 7); sizes = {sizes}; "
        "print(sha256(b''.join(stream.read(n) for n in sizes)).hexdigest())"
    )
    source = str(Path(__file__).parents[2] / "src")
    monkeypatch.setenv("PYTHONPATH", source)
    said = set()
    for wanted in (NUMPY, ""):
        monkeypatch.setenv(VARIABLE, wanted)
        run = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True
        )
        said.add(run.stdout)
    assert len(said) == 1
    whole = Keystream(Secret(KEY), "p", 7).read(sum(sizes))
    pieces = Keystream(Secret(KEY), "p", 7)
    assert b"".join(pieces.read(size) for size in sizes) == whole
