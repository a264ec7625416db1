"""The package's one compiled part; all else stands in ``pyproject.toml``."""

from setuptools import Extension, setup

KERNEL = "src/precad/common/kernel"

setup(
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
    ]
)
