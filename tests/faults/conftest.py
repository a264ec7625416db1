"""Faults: tests that import each other's helpers, whether or not pytest was started as a module."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)
