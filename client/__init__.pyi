# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.client.data_owner import (
    DataOwner as DataOwner,
)
from precad.client.gradients.evaluation import (
    Evaluation as Evaluation,
)
from precad.client.gradients.torch_models import (
    load_initial as load_initial,
    load_vector as load_vector,
    model_section as model_section,
)
from precad.client.participation import (
    Participation as Participation,
    RoundInfo as RoundInfo,
    TrainedModel as TrainedModel,
)
from precad.client.records.columns import (
    Columns as Columns,
)
