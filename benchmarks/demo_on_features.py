"""`precad demo` on features that were computed before, for `utility.py`.

    python demo_on_features.py FOLDER MODEL [OPTIONS OF precad demo]

FOLDER has ``train_x.npy`` and ``test_x.npy``, what MODEL's rule makes of MNIST's images. All else
is the demo's.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.cli.demo.command import demo
from precad.simulation.data.fixed_features import FIXED_FEATURES


def main() -> None:
    """Run it."""
    folder, model, *options = sys.argv[1:]
    made: dict[int, NDArray[np.float32]] = {}
    for part in ("train_x", "test_x"):
        features = np.load(Path(folder) / f"{part}.npy")
        made[len(features)] = features
    # In this process alone: the parts get records from it.
    FIXED_FEATURES[model] = lambda images, _told: made[len(images)]
    demo(["--model", model, *options])


if __name__ == "__main__":
    main()
