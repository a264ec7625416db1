"""Public data sets as arrays. Nothing is downloaded."""

from precad.experiments.data.dataset import DataSet
from precad.experiments.data.load import NAMES, load

__all__ = ["NAMES", "DataSet", "load"]
