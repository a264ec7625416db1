"""The hole that validation closes: stock CrypTen accepts vectors that are far too long."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import precad
from precad.common.encode import encode
from precad.common.errors import Rejection
from precad.common.task import Task

SCRIPT = Path(__file__).parent / "stock_crypten.py"
SOURCES = Path(precad.__file__).parents[1]
DIMENSION = 1000
VECTORS = {
    "norm 29": [29.0] + [0.0] * (DIMENSION - 1),
    "norm 31": [31.0] + [0.0] * (DIMENSION - 1),
    "one 65536": [65536.0] + [0.0] * (DIMENSION - 1),
    "all 65536": [65536.0] * DIMENSION,
}


def test_stock_crypten_accepts_wrapped_norms_that_validation_rejects(
    validate_both: Callable[..., tuple[Rejection | None, ...]], task_of: Callable[..., Task]
) -> None:
    assert round(math.hypot(*VECTORS["all 65536"])) == 2_072_430
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(SCRIPT), json.dumps(VECTORS)],
        env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "norm 29": True,
        "norm 31": False,
        "one 65536": True,
        "all 65536": True,
    }
    task = task_of(DIMENSION, client_clip=30.0, fractional_bits=16)
    encoded = [encode(np.array(vector), 16) for vector in VECTORS.values()]
    assert validate_both(task, encoded) == (
        None,
        Rejection.NORM_EXCEEDED,
        Rejection.NORM_EXCEEDED,
        Rejection.NORM_EXCEEDED,
    )
