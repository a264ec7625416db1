"""The coin key on disk: beside the signing key, never with the database."""

from pathlib import Path

from precad.common.aggregator.round.coin import CoinKey
from precad.common.durable import write_file
from precad.common.errors import Misconfiguration
from precad.common.keystream import KEY_BYTES
from precad.common.secret import Secret

COIN_FILE = "coin.key"


def load_coin_key(folder: Path) -> CoinKey:
    """The server's coin key from its identity folder; a fresh one where there is none yet.

    Args:
        folder: with the server's certificate and signing key.

    Raises:
        Misconfiguration: the file isn't a key, or there is none and none can be written.
    """
    path = folder / COIN_FILE
    try:
        key = Secret(path.read_bytes())
    except FileNotFoundError:
        key = Secret.random()
        try:
            write_file(path, key.reveal(), replace=False)
        except FileExistsError:
            return load_coin_key(folder)
        except OSError as error:
            raise Misconfiguration(
                "identity",
                str(folder),
                f"holds no {COIN_FILE}, and none can be written there ({error.strerror}): let the "
                "server write to it once, or issue its keys anew with this version of precad",
            ) from None
    except OSError as error:
        raise Misconfiguration("identity", str(path), f"can't be read ({error.strerror})") from None
    if len(key) != KEY_BYTES:
        raise Misconfiguration(
            "identity", str(path), f"a coin key has {KEY_BYTES} bytes; put the right file back"
        )
    return CoinKey(key, lambda fresh: write_file(path, fresh.reveal()))
