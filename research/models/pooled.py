"""Logistic regression on images of a quarter of their side: few weights, so that noise is small."""

from torch import nn

from precad.simulation.datasets import DataSet
from research.models import MODELS

FACTOR = 4


@MODELS.register("pooled-logistic")
def pooled_logistic(data: DataSet) -> nn.Module:
    """Multinomial logistic regression on the means of 4×4 pixels of each channel."""
    channels, height, width = data.train_x.shape[1:]
    features = channels * (height // FACTOR) * (width // FACTOR)
    return nn.Sequential(
        nn.AvgPool2d(FACTOR), nn.Flatten(), nn.Linear(features, data.classes)
    )
