# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.client.gradients.evaluation import (
    Applied as Applied,
    Evaluation as Evaluation,
    beside_targets as beside_targets,
    level_names as level_names,
    own_words as own_words,
)
from precad.client.gradients.first_gradients import (
    check_first_gradients as check_first_gradients,
    chunks_of as chunks_of,
    uneven_start as uneven_start,
)
from precad.client.gradients.hostile_models import (
    refuse_what_may_raise as refuse_what_may_raise,
    slow_models as slow_models,
)
from precad.client.gradients.local_training import (
    batches as batches,
    trained_changes as trained_changes,
)
from precad.client.gradients.local_update import (
    WORK_ROOM as WORK_ROOM,
    padded_work_s as padded_work_s,
    poisson_sample as poisson_sample,
    sum_encoded as sum_encoded,
)
from precad.client.gradients.model_constructs import (
    NOT_BUILT as NOT_BUILT,
    NO_RANDOMNESS as NO_RANDOMNESS,
    check_layers as check_layers,
    explained as explained,
    is_lazy as is_lazy,
    place_in_own_code as place_in_own_code,
)
from precad.client.gradients.objectives import (
    Loss as Loss,
    MOST_COPIES as MOST_COPIES,
    Objective as Objective,
    augmentation as augmentation,
    check_usable as check_usable,
    compared as compared,
    loss_in as loss_in,
    loss_of_record as loss_of_record,
)
from precad.client.gradients.own_weights import (
    buffers_of as buffers_of,
    check_buffers as check_buffers,
    check_file as check_file,
    check_weights as check_weights,
)
from precad.client.gradients.record_gradients import (
    CHUNK_BYTES as CHUNK_BYTES,
    RecordGradients as RecordGradients,
    chunk_records as chunk_records,
    synthetic as synthetic,
)
from precad.client.gradients.rehearsal import (
    check_processor as check_processor,
    made_up_work_s as made_up_work_s,
    rehearse as rehearse,
    try_model as try_model,
)
from precad.client.gradients.torch_models import (
    BUILT_IN as BUILT_IN,
    build as build,
    check_parameters as check_parameters,
    load_vector as load_vector,
    logistic as logistic,
    mlp as mlp,
    model_section as model_section,
)
from precad.client.gradients.torch_operations import (
    ForeignTokens as ForeignTokens,
    NotTaken as NotTaken,
    Operations as Operations,
)
