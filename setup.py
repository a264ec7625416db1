"""The package's one compiled part, and its version; all else is in ``pyproject.toml``.

The version is what ``common/releases.toml`` and git say. It goes with the commit into
every wheel and source distribution, where git isn't there any more.
"""

import json
import runpy
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
DECIDING = runpy.run_path(str(ROOT / "deploy" / "build_version.py"))
BUILD = DECIDING["build_of"](ROOT)


def write_build(folder: Path) -> None:
    """Write what was decided into the package that stands in ``folder``."""
    path = folder / DECIDING["PACKAGED"].relative_to("src")
    path.write_text(json.dumps(BUILD), encoding="utf-8")


class BuildPy(build_py):
    """Adds the version to a wheel; a checkout that is installed asks for it itself."""

    def run(self) -> None:
        """Copy the package, as setuptools does."""
        super().run()
        if not self.editable_mode:
            write_build(Path(self.build_lib))


class Sdist(sdist):
    """Adds the version to a source distribution."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, as setuptools does."""
        super().make_release_tree(base_dir, files)
        write_build(Path(base_dir, "src"))


KERNEL = "src/precad/common/kernel"

setup(
    version=BUILD["version"],
    cmdclass={"build_py": BuildPy, "sdist": Sdist},
    ext_modules=[
        # No extension of Python: a library that common/kernel/__init__.py loads.
        # Optional, because precad works without it: where it can't be compiled, NumPy
        # does its work.
        Extension(
            "precad.common.kernel._projections",
            [f"{KERNEL}/projections.c", f"{KERNEL}/field.c"],
            extra_compile_args=["-O3", "-std=c11", "-fvisibility=hidden"],
            optional=True,
        )
    ],
)
