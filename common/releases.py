"""Which build of precad this is: its version and its commit.

``releases.toml`` lists the releases and decides the version. A wheel holds what was
decided when it was built; a checkout asks its own ``deploy/build_version.py``, so that
it names the present commit however long ago it was installed.
"""

import json
import runpy
from functools import cache
from pathlib import Path

from precad.common import frozen_kw_only_dataclass

_FOLDER = Path(__file__).resolve().parent
_PACKAGED = _FOLDER / "build.json"
"""What setup.py writes into a wheel."""


@frozen_kw_only_dataclass
class Build:
    """A version, and the commit that it was built from."""

    version: str
    commit: str
    """40 hexadecimal digits, or ``unknown``."""

    def __str__(self) -> str:
        """Return both, as people read them."""
        return f"precad {self.version} (commit {self.commit})"


@cache
def this_build() -> Build:
    """Return the build that runs; in a checkout git is asked, once a process."""
    if _PACKAGED.exists():
        return Build(**json.loads(_PACKAGED.read_text(encoding="utf-8")))
    root = _FOLDER.parent
    decide = runpy.run_path(str(root / "deploy" / "build_version.py"))["build_of"]
    return Build(**decide(root))
