"""Features that each owner computes of each record alone: they cost no privacy."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from precad.common.terminal.progress import Told, nobody
from precad.simulation.data.dataset import DataSet
from precad.simulation.data.oriented_gradients import oriented_gradients
from precad.simulation.data.scattering_features import scattering_features

Rule = Callable[[NDArray[np.float32], Told], NDArray[np.float32]]
"""Features ``[n, k]`` of images ``[n, 1, s, s]``; says how far it is."""

FIXED_FEATURES: dict[str, Rule] = {
    "features": lambda images, _told: oriented_gradients(images),
    "scattering": scattering_features,
}
"""By the name of the model that has a linear layer on them."""


def with_features(data: DataSet, rule: Rule, told: Told = nobody) -> DataSet:
    """The same records, each image replaced by its features."""
    return replace(data, train_x=rule(data.train_x, told), test_x=rule(data.test_x, told))
