"""What must hold of real processes' states after kill -9, cuts and restarts."""

import re
from collections import defaultdict
from contextlib import suppress

from tests.faults.processes import SERVER_ROLES, FaultyDeployment

from precad.client.account_file import AccountFile, Charge
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role


def check(deployment: FaultyDeployment) -> None:
    # The training was broken off: what both servers have done is settled, the rest is open.
    settled = deployment.done()
    a, b = (deployment.rounds(role) for role in SERVER_ROLES)
    for rounds in (a, b):
        versions = sorted(version for state, version, *_ in rounds.values() if state == "done")
        assert versions[:settled] == list(range(settled)), "a version is done twice, or never"
        for state, version, *_ in rounds.values():
            assert version >= settled or state in {"done", "voided", "abandoned"}
    for number, (state, version, valid_set, _, model) in a.items():
        if state == "done" and version < settled:
            assert (b[number][0], b[number][1]) == ("done", version)
            assert b[number][2] == valid_set, f"round {number}: different sets"
            assert b[number][4] == model, f"round {number}: different models"
        if state == "voided" and version < settled:
            assert b[number][0] == "voided"
    charges = [deployment.charges(role) for role in SERVER_ROLES]
    for number, (state, version, *_) in a.items():
        if version < settled and state == "done":
            assert charges[0].get(number) == charges[1].get(number), f"round {number}: ledgers"
    for role in SERVER_ROLES:
        check_what_left(deployment, role)
        spent = [tuple(note["spent"]) for note in deployment.notes(role) if "spent" in note]
        assert len(spent) == len(set(spent)), f"{role} wanted to use a triple twice"
    for client in deployment.clients:
        account = own_account(deployment, client.name)
        pairs: dict[int, set[str]] = defaultdict(set)
        for note in deployment.notes(client.name):
            if "submitted" in note:
                pairs[note["submitted"]].add(note["commitment"])
        assert all(len(commitments) == 1 for commitments in pairs.values()), "a second sample"
        version_of = {number: row[1] for each in (a, b) for number, row in each.items()}
        assert {version_of[n] for n in pairs if n in version_of} <= account, "sent and not counted"
        for charged in charges:
            counted = {version_of[n] for n, names in charged.items() if client.name in names}
            assert counted <= account, "a server charged what the owner doesn't know of"


def check_what_left(deployment: FaultyDeployment, role: str) -> None:
    rounds = deployment.rounds(role).values()
    shares = {digest.hex(): state for state, _, _, digest, _ in rounds if digest is not None}
    left = {note["left"] for note in deployment.notes(role) if "left" in note}
    assert left, "nothing was released at all"
    assert left <= set(shares), "bytes left that are no round's persisted share"
    assert not any(shares[digest] == "voided" for digest in left), "a voided share left"


def own_account(deployment: FaultyDeployment, client: str) -> set[int]:
    path = deployment.folder / "state" / client / "participations.log"
    return {entry.version for entry in AccountFile(path).new_entries() if isinstance(entry, Charge)}


def kill_all(deployment: FaultyDeployment) -> None:
    for process in deployment.processes.values():
        process.kill()
        process.wait()
    deployment.stop()


class Operators:
    def __init__(self, deployment: FaultyDeployment) -> None:
        self._deployment = deployment
        self._looks = 0

    def look(self) -> None:
        self._looks += 1
        if self._looks % 50 != 1:
            return
        for role in (Role.SERVER_A, Role.SERVER_B):
            # Whoever is being started again is asked the next time.
            with suppress(PeerUnavailable, PeerViolation):
                said = self._deployment.operator(role).status().error
                if found := re.search(r"precad allow (\S+) .*--version (\d+)", said):
                    for each in (Role.SERVER_A, Role.SERVER_B):
                        self._deployment.operator(each).allow(found[1], int(found[2]))
