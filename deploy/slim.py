"""Remove from an environment what no running part opens: tests, headers, tools.

    python slim.py FOLDER

FOLDER is a virtual environment. For images; pip can't leave them out.
"""

import shutil
import sys
from pathlib import Path

UNUSED = (
    "**/tests",
    "onnx/backend/test",
    # Its own tests, and what compiles against it.
    "torch/bin/[!t]*",
    "torch/bin/test_*",
    "torch/include",
    "torch/share",
    "torch/test",
    "torch/lib/*.a",
)
"""In site-packages. torch loads with its torch_shm_manager only."""


def slim(packages: Path) -> None:
    """Remove them."""
    for pattern in UNUSED:
        for found in sorted(packages.glob(pattern)):
            if found.is_dir():
                shutil.rmtree(found)
            elif found.exists():
                found.unlink()


if __name__ == "__main__":
    (packages,) = Path(sys.argv[1]).glob("lib/python3*/site-packages")
    slim(packages)
