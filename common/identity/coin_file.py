"""A server's coin key on disk: beside its signing key, never with its database.

A task whose operators wanted new coins has a key of its own from then on: other tasks of this
server go on drawing with theirs.
"""

from pathlib import Path

from precad.common.durable import write_file
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Digest
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


def read_coin_key(folder: Path, task: Digest) -> Secret:
    """A task's own coin key, or that of all tasks; a fresh one is written where there is none yet.

    Args:
        folder: with the server's certificate and signing key.
        task: whose coins are drawn with it.

    Raises:
        Misconfiguration: the file isn't a key, or there is none and none can be written.
    """
    path = _own(folder, task)
    try:
        if not path.exists():
            path = folder / COIN_FILE
            # Not over one that is there: the folder may be read-only.
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


def replace_coin_key(folder: Path, task: Digest, key: Secret) -> None:
    """Write a task's own ``key``: both servers' operators want new coins for it."""
    write_file(_own(folder, task), key.reveal())


def _own(folder: Path, task: Digest) -> Path:
    return folder / f"coin-{task}.key"
