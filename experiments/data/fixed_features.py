"""Features that each owner computes of each record alone: they cost no privacy."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from precad.experiments.data.dataset import DataSet
from precad.experiments.data.oriented_gradients import oriented_gradients
from precad.experiments.data.scattering import scattering_features

Rule = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Features ``[n, k]`` of images ``[n, 1, s, s]``."""

FIXED_FEATURES: Mapping[str, Rule] = {
    "features": oriented_gradients,
    "scattering": scattering_features,
}
"""By the name of the model that has a linear layer on them."""


def with_features(data: DataSet, rule: Rule) -> DataSet:
    """The same records, each image replaced by its features."""
    return replace(data, train_x=rule(data.train_x), test_x=rule(data.test_x))
