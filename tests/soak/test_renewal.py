"""Certificates of 100 s in a training of real processes: warned of, renewed, nobody
stopped.

In simulated time, and without a renewal: tests/faults/test_ends_in_training.py.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest
from tests.rig import commands, waiting
from tests.soak.conftest import Deploy

from precad.common import clock
from precad.common.identifiers import Role
from precad.common.identity import authority
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.endings import endings
from precad.common.identity.party_certificate import Principal

LASTS_S = 100.0


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_every_partys_certificate_is_warned_of_and_renewed_and_no_round_is_lost(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, validation: str
) -> None:
    deployment = deploy(validation=validation)
    keys = deployment.folder / "keys"
    parties = [
        Identity.load(keys / name).principal
        for name in (*deployment.servers, "ward-0", "ward-1")
    ]

    def wait(ready: Callable[[], bool]) -> None:
        waiting.until(ready, deployment.explain)

    def log(name: str) -> str:
        return deployment.log_tail(name, 10_000)

    def warned(party: Principal) -> bool:
        return f"the certificate of {party} ends on" in log(party.name)

    def seen_by(party: Principal) -> str:
        """What a look on the party's own machine says."""
        asked = "doctor" if party.role is Role.CLIENT else "health"
        settings = deployment.folder / f"{party.name}.toml"
        return commands.precad(asked, "--config", settings).output

    def short(**given: float) -> timedelta:
        return timedelta(seconds=LASTS_S) if "days" in given else timedelta(**given)

    deployment.start_all()
    wait(lambda: deployment.done() >= 2)
    # Nothing ends soon; and what the looks load is loaded.
    assert not [party for party in parties if " ends on " in seen_by(party)]
    assert not [party for party in parties if warned(party)]
    with monkeypatch.context() as patched:
        patched.setattr(authority, "timedelta", short)
        for party in parties:
            Deployment.open(keys).renew(party)
    ends = clock.wall() + timedelta(seconds=LASTS_S)
    wait(lambda: all(map(warned, parties)))
    for party in parties:
        shown = [str(party)]
        if party.role is Role.CLIENT:
            shown += ["server-a.precad", "server-b.precad"]
        looked = seen_by(party)
        for who in shown:
            assert f"the certificate of {who} ends on" in looked
    # The operator is told of all of them by one server, which has met them.
    told = " ".join(deployment.operator(Role.SERVER_B).status().warnings)
    for party in parties:
        if party.role not in (Role.DEALER, Role.SERVER_B):
            assert f"the certificate of {party} ends on" in told
        words = " ".join(dict.fromkeys((party.role.value, party.name)))
        assert f"precad keys renew DIRECTORY {words})" in log(party.name)
        commands.said("keys", "renew", keys, *words.split())
    wait(lambda: all(log(party.name).count("was renewed") >= 2 for party in parties))
    wait(lambda: clock.wall() > ends + timedelta(seconds=5))
    rounds = deployment.done()
    wait(lambda: deployment.done() >= rounds + 5)
    # No part was started again, none met an expired certificate, and no attempt was
    # lost.
    assert {each.poll() for each in deployment.processes.values()} == {None}
    assert not [party.name for party in parties if "expired" in log(party.name)]
    for role in ("server-a", "server-b"):
        states = [state for state, *_ in deployment.rounds(role).values()]
        assert set(states[:-2]) == {"done"}, states
    counted = {len(clients) for clients in deployment.charges("server-a").values()}
    assert counted == {2}
    for party in parties:
        newest = Identity.load(keys / party.name)
        [own] = [each for each in endings(newest, {}) if each.kind == party.role.value]
        assert own.ends > ends + timedelta(days=300)
