"""A server's coin keys on disk, never with its database.

``coin.key`` lies beside the signing key. A task whose operators wanted new coins has a key of its
own from then on, in its journal's folder: other tasks of this server go on drawing with theirs. The
identity may be read-only, or in memory, as in containers; a journal is kept, on no disk and in no
backup that the database comes back from.
"""

from pathlib import Path

from precad.common.errors import Misconfiguration, StorageFailure
from precad.common.files import write_file
from precad.common.identifiers import Digest, Role
from precad.common.secret import Secret

COIN_FILE = "coin.key"
DRAWING_ROLES = (Role.SERVER_A, Role.SERVER_B)
"""The two servers draw each version's coin; a coin key stays when the signing key is renewed."""
COIN_BYTES = 32
"""As every key that is expanded; their module would load NumPy into `precad keys`."""


def make_coin_key(folder: Path) -> None:
    """Write a fresh coin key; one that is there stays. Raises OSError."""
    try:
        write_file(folder / COIN_FILE, Secret.random().reveal(), replace=False)
    except FileExistsError:
        return


def take_over_coin_key(old: Path, folder: Path) -> None:
    """Copy the coin key to where a renewed signing key lies. Raises OSError.

    Raises Misconfiguration: ``old`` has no coin key, or ``folder`` has another one.
    """
    path, to = old / COIN_FILE, folder / COIN_FILE
    if not path.is_file():
        raise Misconfiguration(
            "--renew",
            str(old),
            f"has no {COIN_FILE}: put the server's own back there. With a new one no version that "
            "is open could be drawn again",
        )
    key = path.read_bytes()
    if to.exists() and to.read_bytes() != key:
        raise Misconfiguration("FOLDER", str(to), f"is another key than {path}: name a new folder")
    write_file(to, key)


def read_coin_key(identity: Path, journal: Path, task: Digest) -> Secret:
    """A task's own coin key, or that of all tasks; a fresh one is written where there is none yet.

    ``identity`` and ``journal`` are folders: the server's, and that of the task's journal.

    Raises Misconfiguration: the file isn't a key, or there is none and none can be written.
    """
    path, field = _own(journal, task), "journal"
    earlier = _own(identity, task)
    try:
        if not path.exists() and earlier.exists():
            # Where it was kept at first. Its coins are drawn, and older ones may be known.
            write_file(path, earlier.read_bytes())
        if not path.exists():
            path, field = identity / COIN_FILE, "identity"
            # Not over one that is there: the folder may be read-only.
            if not path.exists():
                make_coin_key(identity)
        key = Secret(path.read_bytes())
    except OSError as error:
        raise Misconfiguration(
            field,
            str(path),
            f"no coin key can be read or written there ({error.strerror}): put the server's own "
            "back, or issue its keys anew with this version of precad",
        ) from None
    if len(key) != COIN_BYTES:
        raise Misconfiguration(
            field, str(path), f"a coin key has {COIN_BYTES} bytes; put the right file back"
        )
    return key


def replace_coin_key(journal: Path, task: Digest, key: Secret) -> None:
    """Write a task's own key: both operators want new coins for it. Raises StorageFailure."""
    path = _own(journal, task)
    try:
        write_file(path, key.reveal())
    except OSError as error:
        raise StorageFailure(
            f"{path} can't be written ({error.strerror}); free or mend the disk of the settings' "
            "journal, then start this server again"
        ) from None


def _own(journal: Path, task: Digest) -> Path:
    return journal / f"coin-{task}.key"
