"""Owners that train by themselves join real servers: the owner is what is protected.

The servers leave their noise out, so that the model shows what owners added.
"""

import numpy as np
import pytest
from examples.demo.local_processes import LINGER_S
from tests.integration.deployment.conftest import Deploy
from tests.rig import whole_owners
from tests.rig.commands import document, precad, said

from precad.accounting.guarantees import planned_guarantees

ROUNDS = 2
OWNERS = ("ward-1", "ward-2", "ward-3")
NOT_PRESENCE = "what an owner's records say, not that it takes part"


def test_owners_train_by_themselves_with_the_simulations_bits_and_statements_of_owners(
    deploy: Deploy,
) -> None:
    generator = np.random.default_rng(5)
    shares = {}
    for number, name in enumerate(OWNERS):
        x = generator.normal(size=(8 + 20 * number, 3)).astype(np.float32)
        shares[name] = x, (x.sum(axis=1) > 0).astype(np.int64)
    with deploy(
        whole_owners.changes(len(OWNERS), ROUNDS),
        len(OWNERS),
        whole_owners.by_client(shares),
        linger_s=LINGER_S,
        instead=whole_owners.WITHOUT_NOISE,
    ) as deployment:
        task = deployment.folder / "task.toml"
        settings = deployment.folder / f"{OWNERS[1]}.toml"
        looked = precad("doctor", "--config", settings).stdout
        assert "28 records, each float32" in looked
        assert "pace: a round's work takes" in looked
        assert NOT_PRESENCE in said("task", "show", task)
        whole_owners.trained(deployment, shares)
        assert "exact owner-level ε over all tasks" in deployment.log(OWNERS[0])
        deployment.stop()
        state = deployment.folder / "state"
        ledger = document("ledger", "show", state / "server-a")
        own = document("ledger", "mine", state / OWNERS[0])
        assert (ledger["unit"], own["unit"]) == ("owner", "owner")
        # Full steps, one each version.
        charged = {
            (row["record_rate"], row["participations"]) for row in ledger["clients"]
        }
        assert charged == {(1.0, ROUNDS)}
        one_server = planned_guarantees(deployment.task)[0]
        assert one_server.to_json()["adjacency"] == "zero-out-client"
        assert own["epsilon"] == pytest.approx(one_server.epsilon)
        assert ledger["clients"][0]["epsilon"] == pytest.approx(one_server.epsilon)
        spent = said("account", "--task", task)
        assert "one-server: one owner, against one curious server" in spent
        report = deployment.folder / "report.html"
        said("report", state / "server-a", "--out", report)
        text = " ".join(report.read_text("utf-8").replace("&#39;", "'").split())
        assert NOT_PRESENCE in text
        assert "<b>84</b> records, as they say" in text
        assert "<h2>What is guaranteed to an organisation</h2>" in text
        assert "an owner's gradient" not in text
