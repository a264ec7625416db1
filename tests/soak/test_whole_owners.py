"""Twenty owners that train by themselves as processes, over both checks of norms: the
bits of the simulation that plays hundreds."""

from pathlib import Path

import pytest
from examples.demo.local_processes import LocalDeployment
from tests.conftest import small_task
from tests.rig import whole_owners
from tests.rig.crew import CHANGES
from tests.rig.tasks import logistic
from tests.rig.warm import forked

from precad.simulation.datasets import digits

OWNERS, RECORDS, ROUNDS = 20, 60, 2


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_twenty_owners_as_processes_have_the_simulations_bits(
    tmp_path: Path, validation: str
) -> None:
    data = digits()
    shares = {
        f"ward-{number:02d}": (
            data.train_x[RECORDS * number : RECORDS * (number + 1)],
            data.train_y[RECORDS * number : RECORDS * (number + 1)],
        )
        for number in range(OWNERS)
    }
    changes = (
        logistic(data.features, data.classes)
        | CHANGES
        | {"enrolment.clients": OWNERS, "validation": validation}
        | whole_owners.changes(OWNERS, ROUNDS)
    )
    deployment = LocalDeployment(
        tmp_path,
        small_task(changes=changes),
        whole_owners.by_client(shares),
        instead=whole_owners.WITHOUT_NOISE,
        popen=forked,
    )
    with deployment:
        whole_owners.trained(deployment, shares)
