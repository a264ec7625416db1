"""Algorithm 2 of PRECAD up to the integer vector that is shared."""

from precad.client.train.apply import Applied
from precad.client.train.gradients import RecordGradients
from precad.client.train.models import (
    build,
    check_parameters,
    load_vector,
    logistic,
    mlp,
    model_section,
)
from precad.client.train.records import Records, as_inputs, as_records
from precad.client.train.rehearsal import rehearse
from precad.client.train.sample import most_records, poisson_sample
from precad.client.train.update import local_update

__all__ = [
    "Applied",
    "RecordGradients",
    "Records",
    "as_inputs",
    "as_records",
    "build",
    "check_parameters",
    "load_vector",
    "local_update",
    "logistic",
    "mlp",
    "model_section",
    "most_records",
    "poisson_sample",
    "rehearse",
]
