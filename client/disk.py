"""Writing what an owner must not lose: a disk that fails is an error that says what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from precad.common.errors import StorageFailure


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """The block writes ``path``. Raises StorageFailure where the system can't."""
    try:
        yield
    except OSError as error:
        raise StorageFailure(
            f"{path} can't be written ({error.strerror}): nothing that depends on it is sent; make "
            "room or mend the disk, and start again"
        ) from error
