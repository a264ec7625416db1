"""The demo on features that were computed before, for `utility.py`.

    python demo_on_features.py FOLDER MODEL [OPTIONS OF THE DEMO]

FOLDER has what `utility.py` makes of MNIST's images by MODEL's rule: ``train_x.npy``
and so on. All else is the demo's.
"""

import sys
from pathlib import Path

import numpy as np
import research.features.fixed_features  # noqa: F401 -- the settings
from examples.demo.__main__ import demo
from research.datasets import DATASETS, DataSet


def main() -> None:
    """Run it."""
    folder, model, *options = sys.argv[1:]
    parts = {
        part: np.load(Path(folder) / f"{part}.npy")
        for part in ("train_x", "train_y", "test_x", "test_y")
    }
    features = DataSet(name="mnist", **parts, classes=10)
    # In this process alone: the parts get records from it.
    DATASETS.register("mnist-features")(lambda _folder: features)
    demo(["--dataset", "mnist-features", "--model", model, *options])


if __name__ == "__main__":
    main()
