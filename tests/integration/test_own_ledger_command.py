"""`precad ledger mine` and `precad ledger receipts`, on what owners' processes left behind."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.rig.commands import precad
from tests.rig.keys import identity
from tests.rig.scripted_servers import Open, Over, Owner, Script

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.accounting.rdp import sampled_gaussian_rdp
from precad.client.own_account import OwnAccount
from precad.client.server_statements import STATEMENT
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.wire.messages import sign_body
from precad.protos import precad_pb2 as pb

Played = Callable[..., Any]


def says(code: int, *arguments: object, words: Sequence[str] = ()) -> str:
    """What the command prints, which ends with ``code`` and says these words."""
    result = precad("ledger", *arguments, terminal_width=200)
    missing = [each for each in words if each not in result.output]
    assert (result.exit_code, missing) == (code, []), result.output
    return result.output


def mine(folder: Path, *more: object) -> Any:
    return json.loads(says(0, "mine", folder, "--json", *more))


@pytest.fixture
def played(make_task: Any, tmp_path: Path) -> Played:
    """``played("ward-1")``: an owner's folder after three versions, one of them twice."""

    def make(name: str = "ward-1", limit: float | None = None) -> Owner:
        twice = [Open(1, 1), Open(2, 1, charges=(1, 0)), Over(2, 1)]
        course: list[Any] = [Open(0, 0), Over(0, 0), *twice, Open(3, 2), Over(3, 2)]
        one = Owner(Script(make_task(8), course, ClientId(name)), tmp_path / name, limit)
        (tmp_path / name).mkdir()
        one.run()
        return one

    return make


def restate(folder: Path, role: Role, **changes: Any) -> None:
    path = folder / STATEMENT.format(role.value)
    body = pb.StatementBody.FromString(pb.Signed.FromString(path.read_bytes()).body)
    for name, value in changes.items():
        if name == "charged":
            body.charged[:] = value
        else:
            setattr(body, name, value)
    pen = CertificateSigner(identity(Principal.service(role)))
    path.write_bytes(sign_body(pen, role, body).SerializeToString())


def test_the_sum_over_five_tasks_is_an_independent_compositions(
    make_task: Any, tmp_path: Path
) -> None:
    path, limit = tmp_path / "participations.log", 4.0
    plan = [(2.0, 0.2, 1e-5, 4), (1.5, 0.1, 1e-5, 3), (3.0, 0.2, 1e-6, 5), (2.5, 0.05, 1e-5, 2)]
    plan.append((4.0, 0.2, 1e-7, 1))
    composed = ExactAccountant()
    for sigma, rate, delta, versions in plan:
        task = make_task(8, {"privacy.noise_multiplier": sigma, "privacy.delta": delta})
        own = OwnAccount(task, rate, limit, path, ClientId("ward-1"))
        for version in range(versions):
            own.charge(version)
        step = poisson_gaussian(rate=rate, noise_multiplier=sigma, count=versions)
        if sigma == 4.0:
            # Repeated twice: one step with another σ, not three steps.
            own.charge(0, 2)
            step = poisson_gaussian(rate=rate, noise_multiplier=sigma / math.sqrt(3))
        composed.compose(step)
    document = mine(tmp_path)
    assert (document["versions"], len(document["tasks"]), document["delta"]) == (15, 5, 1e-5)
    assert document["epsilon"] == pytest.approx(composed.epsilon(1e-5), rel=1e-9)
    # By the limit's own order and its conversion, without the filter's code.
    order = document["limit"]["order"]
    rho = math.fsum(
        n * float(sampled_gaussian_rdp(p, s, (order,))[0])
        for s, p, _, n in [*plan[:4], (4.0 / math.sqrt(3), 0.2, 0, 1)]
    )
    slack = math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
    assert document["limit"]["filter_epsilon"] == pytest.approx(rho + slack)
    assert document["epsilon"] < document["limit"]["filter_epsilon"] < limit
    assert mine(tmp_path, "--delta", "1e-7")["epsilon"] == pytest.approx(composed.epsilon(1e-7))


def test_mine_says_what_each_task_cost(played: Played, tmp_path: Path) -> None:
    one = played(limit=3.0)
    epsilon = f"exact ε of all together {one.open_account().epsilon():.4g} at δ = 1e-05"
    limit = "limit ε = 3 at δ = 1e-05, enforced by a Rényi filter"
    says(0, "mine", one.folder, words=[str(one.script.task.digest)[:12], epsilon, limit])
    (row,) = mine(one.folder)["tasks"]
    assert (row["client"], row["versions"], row["further_releases"]) == ("ward-1", 3, 1)
    # A folder without charges, or without anything, is said.
    says(2, "mine", tmp_path, words=["holds no account"])
    says(2, "receipts", tmp_path, words=["no server's statement"])
    (tmp_path / "participations.log").touch()
    says(0, "mine", tmp_path, words=["nothing was shared yet"])


def test_only_a_limit_is_said_to_hold_against_a_malicious_one(
    make_task: Any, tmp_path: Path
) -> None:
    proved = make_task(8, {"validation": "proof"})
    for task in (proved, make_task(8)):
        OwnAccount(task, 0.2, 4.0, tmp_path / task.validation, ClientId("ward-1")).charge(0)
    limit, *lines = (tmp_path / "proof").read_text().splitlines(keepends=True)
    lines += (tmp_path / "crypten").read_text().splitlines(keepends=True)[1:]
    # As a version before wrote it.
    old = " ".join(["charge", *lines[0].split()[1:-2]])
    lines.append(f"{old} {hashlib.sha256(old.encode()).hexdigest()[:8]}\n")
    for kept, server in (
        (lines[:1], "malicious"),
        (lines[1:2], "curious"),
        (lines[:2], "curious"),
        (lines[2:], "curious"),
    ):
        (tmp_path / "participations.log").write_text("".join([limit, *kept]))
        document = mine(tmp_path)
        assert document["limit"].pop("server") == server
        # What a malicious server decided itself was fixed by no count.
        assert "malicious" not in json.dumps(document)
        told = says(0, "mine", tmp_path, words=["record level, one curious server"])
        assert ("the limit holds, not what was counted" in told) is (server == "malicious")


@pytest.mark.parametrize("check", ["neither", "", "FSS"])
def test_a_check_of_norms_that_is_none_is_refused(
    make_task: Any, tmp_path: Path, check: str
) -> None:
    path = tmp_path / "participations.log"
    OwnAccount(make_task(8), 0.2, None, path, ClientId("ward-1")).charge(0)
    text = " ".join([*path.read_text().split()[:-2], check])
    path.write_text(f"{text} {hashlib.sha256(text.encode()).hexdigest()[:8]}\n")
    says(2, "mine", tmp_path, words=["can't be read"])


def test_receipts_that_agree_are_sound_and_another_model_is_found(played: Played) -> None:
    one = played()
    words = ["server-a: client ward-1", "server-b: client ward-1", "charged [3]"]
    assert says(0, "receipts", one.folder, words=words).endswith("sound\n")
    document = json.loads(says(0, "receipts", one.folder, "--json"))
    assert (document["sound"], document["server-b"]["version"]) == (True, 3)
    restate(one.folder, Role.SERVER_B, model_digest=b"\5" * 32)
    words = ["the servers signed different models 3: 05050505", "server-b signed 05", "BROKEN"]
    says(1, "receipts", one.folder, words=words)


NEVER_SHARED = ([4], [1, 2], [2, 0, 1])
COUNTED_DIFFERENTLY: list[list[int]] = [[2], [2, 1], [3], []]


@pytest.mark.parametrize("charged", [*NEVER_SHARED, *COUNTED_DIFFERENTLY], ids=str)
def test_a_charge_for_what_was_never_shared_is_found_and_another_count_is_none(
    played: Played, charged: list[int]
) -> None:
    one, found = played(), charged in NEVER_SHARED
    restate(one.folder, Role.SERVER_A, charged=charged)
    text = says(int(found), "receipts", one.folder)
    for words in ("server-a charged", "this owner knows of"):
        assert (words in text) == found


def test_another_owner_who_was_shown_another_model_is_found(played: Played) -> None:
    one, two = played(), played("ward-2")
    says(0, "receipts", one.folder, "--other", two.folder)
    log = two.folder / "models.log"
    lines = log.read_text().splitlines()
    task, version, _ = lines[1].split(" ")
    lines[1] = f"{task} {version} {Digest(bytes(32))}"
    log.write_text("\n".join(lines) + "\n")
    says(1, "receipts", one.folder, "--other", two.folder, words=[f"model {version} was"])


def test_an_account_elsewhere_and_signatures_are_looked_at(played: Played, tmp_path: Path) -> None:
    one, account, files = played(), tmp_path / "account", tmp_path / "keys"
    account.mkdir()
    shutil.move(one.folder / "participations.log", account)
    says(1, "receipts", one.folder)
    says(0, "receipts", one.folder, "--account", account)

    own = identity(Principal.client("ward-1"))
    files.mkdir()
    for name, pem in {"ca": own.ca, "cert": own.cert, "key": own.key.reveal()}.items():
        (files / f"{name}.pem").write_bytes(pem)
        (files / f"{name}.pem").chmod(0o600)
    signed = ("receipts", one.folder, "--account", account, "--identity", files)
    says(0, *signed)
    path = one.folder / STATEMENT.format(Role.SERVER_A.value)
    shutil.copy(one.folder / STATEMENT.format(Role.SERVER_B.value), path)
    says(1, *signed, words=["what server-a is to have signed"])
