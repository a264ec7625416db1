"""Whatever model a server serves: the same work with one record as without it, or refused before.

Work is counted in kernel evaluations. What they take of time, on the way of `precad join`, is
benchmarks/hostile_models.py's.
"""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.rig.hostile_pairs import PAIRS, N, records_for, with_property
from tests.rig.tasks import task_of

from precad.client.gradients.hostile_models import hostile_models
from precad.client.gradients.local_update import local_update
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.rehearsal import rehearse
from precad.common.errors import Misconfiguration

MOST = 100
"""M."""


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's, of two of them
@pytest.mark.parametrize("name", PAIRS)
def test_one_record_takes_no_kernel_more_at_any_model_or_the_pair_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, loss, targets, refused = PAIRS[name]
    records, task = records_for(targets), task_of(model, "uniform")
    if refused:
        with pytest.raises(Misconfiguration, match=refused):
            rehearse(model, loss, records, task, MOST)
        return
    rehearse(model, loss, records, task, MOST)
    tried = 0
    real = RecordGradients.kernel

    def counted(self: RecordGradients, *arguments: Any) -> NDArray[np.float64]:
        nonlocal tried
        tried += 1
        return real(self, *arguments)

    monkeypatch.setattr(RecordGradients, "kernel", counted)
    some = np.arange(N - 5, N)
    for kind, theta in [
        *hostile_models(task.dimension),
        ("a property", with_property(task.dimension)),
    ]:
        work = []
        for indices in (some, some[:-1], some[:0]):
            tried = 0
            local_update(model, loss, records, indices, theta, task, chunk=MOST // 2, most=MOST)
            work.append(tried)
        assert work == [2, 2, 2], kind
