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

    def short(**given: float) -> timedelta:
        return timedelta(seconds=LASTS_S) if "days" in given else timedelta(**given)

    with monkeypatch.context() as patched:
        patched.setattr(authority, "timedelta", short)
        for party in parties:
            Deployment.open(keys).renew(party)
    ends = clock.wall() + timedelta(seconds=LASTS_S)
    deployment.start_all()

    def wait(ready: Callable[[], bool]) -> None:
        waiting.until(ready, deployment.explain)

    def log(name: str) -> str:
        return deployment.log_tail(name, 10_000)

    def warned(party: Principal) -> bool:
        return f"the certificate of {party} ends on" in log(party.name)

    wait(lambda: all(map(warned, parties)))
    wait(lambda: deployment.done() >= 3)
    # Each machine's own commands, and an owner's doctor of both servers.
    folder = deployment.folder
    for party in parties:
        owner = party.role is Role.CLIENT
        asked = "doctor" if owner else "health"
        done = commands.precad(asked, "--config", folder / f"{party.name}.toml")
        for who in (
            str(party),
            *(("server-a.precad", "server-b.precad") if owner else ()),
        ):
            assert f"the certificate of {who} ends on" in done.output
    # The operator is told of all of them by one server, which has met them.
    told = " ".join(deployment.operator(Role.SERVER_B).status().warnings)
    for party in parties:
        if party.role not in (Role.DEALER, Role.SERVER_B):
            assert f"the certificate of {party} ends on" in told
        words = " ".join(dict.fromkeys((party.role.value, party.name)))
        assert f"precad keys renew DIRECTORY {words})" in log(party.name)
        commands.said("keys", "renew", keys, *words.split())
    wait(lambda: all("was renewed" in log(party.name) for party in parties))
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
