"""A server's coin key on disk: beside its signing key, never with its database."""

from pathlib import Path

from precad.common.durable import write_file
from precad.common.errors import Misconfiguration
from precad.common.secret import Secret

COIN_FILE = "coin.key"
COIN_BYTES = 32
"""As every key that is expanded; their module would load NumPy into `precad keys`."""


def make_coin_key(folder: Path) -> None:
    """Write a fresh coin key; one that is there stays, also when the signing key is renewed.

    Raises:
        OSError: it can't be written.
    """
    try:
        write_file(folder / COIN_FILE, Secret.random().reveal(), replace=False)
    except FileExistsError:
        return


def read_coin_key(folder: Path) -> Secret:
    """The coin key of an identity folder; a fresh one is written where there is none yet.

    Args:
        folder: with the server's certificate and signing key.

    Raises:
        Misconfiguration: the file isn't a key, or there is none and none can be written.
    """
    path = folder / COIN_FILE
    try:
        if not path.exists():
            make_coin_key(folder)
        key = Secret(path.read_bytes())
    except OSError as error:
        raise Misconfiguration(
            "identity",
            str(path),
            f"no coin key can be read or written there ({error.strerror}): put the server's own "
            "back, or issue its keys anew with this version of precad",
        ) from None
    if len(key) != COIN_BYTES:
        raise Misconfiguration(
            "identity", str(path), f"a coin key has {COIN_BYTES} bytes; put the right file back"
        )
    return key


def replace_coin_key(folder: Path, key: Secret) -> None:
    """Write ``key`` in place of the old one: both servers' operators want new coins."""
    write_file(folder / COIN_FILE, key.reveal())
