"""`precad account` and `precad plan` as a person runs them; `precad ledger mine` and
`receipts`, on what owners' processes left behind.
"""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TypedDict, Unpack

import pytest
from tests.rig import commands, keys
from tests.rig.accounts import composed
from tests.rig.documents import Document
from tests.rig.epsilons import record_epsilon
from tests.rig.scripted_servers import Event, Open, Over, Owner, Script
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import LARGE, task_with

from precad.accounting import (
    EXACT,
    Adversary,
    ReleaseCounts,
    Run,
    cap_of,
    events,
    rdp,
)
from precad.accounting.exact import ExactAccountant
from precad.accounting.guarantees import guarantees
from precad.certify import group_guarantees, inefficacy
from precad.certify.guarantee import Direction, Replacements
from precad.cli.planning import PlannedRobustness, certified
from precad.cli.task_planning import least_noise
from precad.client.account_file import ACCOUNT_FILE, Covered
from precad.client.account_plan import PlanLimit
from precad.client.check_before_enrolling import look_at_limit
from precad.client.data_set_account import Account
from precad.client.own_account import OwnAccount
from precad.client.server_statements import STATEMENT
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity import party_certificate, signatures
from precad.common.task import Task
from precad.common.wire.messages import sign_body
from precad.protos import precad_pb2 as pb

RUN = [
    "--record-rate",
    "0.2",
    "--client-rate",
    "1",
    "--noise-multiplier",
    "2",
    "--rounds",
    "60",
]
ACCOUNT = [*RUN, "--delta", "1e-5"]
CLIPS = ["--record-clip", "1", "--client-clip", "20", "--dimension", "650"]
document = partial(commands.document, "account")
said = partial(commands.said, "account")
refused = commands.refused
planned = partial(commands.document, "plan")
SCHEDULE = [
    "--record-rate",
    "0.1",
    "--client-rate",
    "0.1",
    "--rounds",
    "200",
    "--delta",
    "1e-5",
]
MODEL = ["--record-clip", "1", "--dimension", "7850"]
PLAN = ["plan", *SCHEDULE, *MODEL, "--epsilon", "2"]
LOOSE = [*PLAN, "--client-clip", "10"]


def task_file(folder: Path, text: str) -> str:
    path = folder / f"{len(list(folder.iterdir()))}.toml"
    path.write_text(text)
    return str(path)


@pytest.fixture
def large_task(tmp_path: Path) -> str:
    return task_file(tmp_path, LARGE)


@pytest.fixture
def limited(tmp_path: Path) -> str:
    return task_file(tmp_path, f"{LARGE}epsilon_limit = 1.5\n")


def exact(statements: list[Document]) -> dict[str, float]:
    return {
        s["adversary"]: s["epsilon"] for s in statements if s["accountant"] == "exact"
    }


def client_level(*arguments: str) -> float:
    return exact(document(*arguments)["guarantees"])["client-level"]


def test_a_large_model_costs_a_client_5_505_under_cover(
    large_task: str, tmp_path: Path
) -> None:
    seen = client_level("--task", large_task)
    hidden = client_level(
        "--task", task_file(tmp_path, f"{LARGE}cover_uploads = true\n")
    )
    assert hidden == pytest.approx(5.505, abs=5e-4)
    # Who uploads is seen: about twenty whole steps, and none of them amplified.
    assert seen > 3 * hidden
    numbers = [
        *SCHEDULE,
        "--noise-multiplier",
        "2",
        "--record-clip",
        "1",
        "--client-clip",
        "2",
    ]
    numbers += ["--dimension", "10000000", "--fractional-bits"]
    assert client_level(*numbers, "20") == seen
    assert client_level(*numbers, "20", "--cover-uploads") == hidden
    assert client_level(*numbers, "16", "--cover-uploads") == pytest.approx(
        5.145, abs=5e-4
    )


def test_json_is_one_document_with_nine_statements() -> None:
    whole = document(*ACCOUNT, *CLIPS, "--fractional-bits", "16")
    assert list(whole) == ["guarantees", "at_cap"]
    found = {(g["adversary"], g["accountant"]): g for g in whole["guarantees"]}
    adversaries = ("one-server", "clients-only", "client-level")
    assert set(found) == set(product(adversaries, ("exact", "rdp", "gdp-clt")))
    epsilons = [found["one-server", by]["epsilon"] for by in ("exact", "gdp-clt")]
    assert epsilons == pytest.approx([3.83, 3.51], abs=0.005)
    expected = 2**0.5 * 2 * (1 + 650**0.5 / 65536 + 20 / 2**18) / 20
    assert found["client-level", "exact"]["noise_multiplier"] == pytest.approx(expected)


def test_tasks_are_added_up(large_task: str, tmp_path: Path) -> None:
    other = task_file(
        tmp_path, LARGE.replace("record_rate = 0.1", "record_rate = 0.05")
    )
    two = ["--task", large_task, "--task", other]
    two += ["--participations", "30", "--participations", "25"]
    before = document(*two)
    assert [run["source"] for run in before["runs"]] == [large_task, other]
    alone = [exact(run["guarantees"]) for run in before["runs"]]
    joint = exact(before["together"])
    for adversary, epsilon in joint.items():
        costs = [one[adversary] for one in alone]
        assert max(costs) < epsilon < sum(costs)
    assert joint["one-server"] < exact(before["together_at_cap"])["one-server"]
    assert {s["compositions"] for s in before["together"]} == {55, 400}
    assert "True of tasks that were fixed beforehand" in said(*two)
    assert "one for each of 2 tasks" in refused(
        "account", *two, "--participations", "1"
    )
    # Of many there is a sum alone.
    many, few = (document(*["--task", large_task] * count) for count in (13, 12))
    assert many["runs"] == [{"source": large_task}] * 13
    assert all("guarantees" in run for run in few["runs"])
    whole, less = exact(many["together"]), exact(few["together"])
    assert all(whole[each] > less[each] for each in whole)


def test_a_cap_counts_repeats_as_whoever_cut_links_chose_them(limited: str) -> None:
    task = Task.load(Path(limited))
    cap = cap_of(task)

    def capped(counts: ReleaseCounts | None = None) -> float:
        run = Run.of(task, counts=counts).at_cap(cap)
        (one,) = guarantees(run, 1e-5, (Adversary.ONE_SERVER,), EXACT)
        assert one.compositions == cap < 200
        return one.epsilon

    plan, once, more = map(capped, (None, {0: 20}, {0: 17, 1: 2, 2: 1}))
    for options in ((), ("--participations", "20")):
        at_cap = document("--task", limited, *options)["at_cap"]
        assert exact(at_cap)["one-server"] == plan
    assert 1.4 < once == plan <= 1.5
    # Four releases show a record as it is, beside as many rounds as ever.
    steps = events.poisson_gaussian(rate=0.1, noise_multiplier=2.0, count=cap)
    shown = events.poisson_gaussian(rate=1.0, noise_multiplier=2.0, count=4)
    assert more == pytest.approx(composed(steps, shown).epsilon(1e-5))


def test_the_cap_stands_beside_the_real_count_and_each_says_when_it_holds() -> None:
    counted = [*ACCOUNT, "--participations", "20", "--cap", "45"]
    found = document(*counted)
    for where, basis in (("guarantees", ("counted", 20)), ("at_cap", ("cap", 45))):
        assert {(g["basis"], g["compositions"]) for g in found[where]} == {basis}
    text = said(*counted)
    assert "at 45 participations, the cap; holds whatever decided" in text
    assert "if no more releases are repeated than were counted" in text
    assert {g["compositions"] for g in document(*ACCOUNT)["at_cap"]} == {60}


def test_a_cap_that_was_passed_holds_nobody_and_the_planned_rounds_do(
    limited: str,
) -> None:
    """An owner at a rate below the task's may have taken part more often than the
    cap."""
    for options in (
        [*ACCOUNT, "--participations", "50", "--cap", "40"],
        ["--task", limited, "--participations", "60"],
    ):
        found = document(*options)
        spent, cap = exact(found["guarantees"]), exact(found["at_cap"])
        assert all(cap[adversary] >= spent[adversary] for adversary in cap)
        assert not re.search("at [45]0 participations, the cap", said(*options))


def test_a_delta_beside_which_epsilon_says_nothing_is_refused(tmp_path: Path) -> None:
    """At δ = .5 it was "ε = 0"."""
    assert "--delta': 0.5 is not in the range 0<x<=0.01" in commands.refused(
        "account", *RUN, "--delta", "0.5"
    )
    words = ["--architecture", "logistic", "--features", "5", "--classes", "2"]
    words += ["--records", "3x400", "--noise-multiplier", "1", "--delta", "0.5"]
    for command in (("plan",), ("task", "new", tmp_path / "t.toml")):
        assert "privacy.delta = 0.5" in commands.refused(*command, *words)


def test_the_clt_is_no_guarantee_and_a_delta_beyond_exact_leaves_other_rows() -> None:
    assert "not a guarantee" in said(*RUN, "--delta", "1e-5")
    found = re.search(
        "no answer at so small a δ.*upper bound", said(*RUN, "--delta", "1e-40")
    )
    assert found


def test_the_section_is_of_a_task_that_servers_take_with_the_least_noise() -> None:
    text = commands.said(*LOOSE)
    assert text.startswith("Planned: ")
    numbers = {k: float(v) for k, v in re.findall(r"([a-z_.]+) = ([0-9.]+) ", text)}
    privacy = {
        name[8:]: n for name, n in numbers.items() if name.startswith("privacy.")
    }
    bits, rounds = (
        int(numbers[name]) for name in ("fractional_bits", "training.rounds")
    )
    changes = {"privacy": privacy, "fractional_bits": bits, "training.rounds": rounds}
    task_with(changes | {"enrolment.max_expected_records": 300.0}, 7850)
    sigma = privacy["noise_multiplier"]
    epsilons = [
        record_epsilon(
            record_rate=0.1, noise_multiplier=noise, delta=1e-5, participations=34
        )
        for noise in (sigma, 0.998 * sigma)
    ]
    assert epsilons[0] <= 2 < epsilons[1]
    # The noise gives its ε again, and all is called planned.
    noise = (
        "--noise-multiplier",
        commands.document(*LOOSE)["task"]["privacy"]["noise_multiplier"],
    )
    found = planned(*SCHEDULE, *MODEL, *noise, "--client-clip", "10")
    assert (found["status"], found["participations"]) == ("planned", 34)
    assert 1.99 < found["statements"][0]["epsilon"] <= 2
    assert [each["basis"] for each in found["statements"]] == ["planned"] * 3


def test_a_plan_for_a_task_whose_claims_divide_says_so_beside_each_bound(
    tmp_path: Path,
) -> None:
    for units, assumed in ((1200, 0), (None, 2)):
        file = tmp_path / f"{units}.toml"
        changes = {} if units is None else {"enrolment.planned_units": units}
        file.write_text(task_to_toml(task_with(changes)), encoding="utf-8")
        found = " ".join(commands.said("plan", "--task", file).split())
        assert found.count("assuming the same claims of sizes") == assumed
        robust = commands.document("plan", "--task", file)["robustness"]
        assert robust["planned_units"] == units
    # What `precad task new` would write has a plan.
    words = ("--records", "3x400", "--epsilon", "3", "--dimension", "62")
    assert commands.document("plan", *words)["robustness"]["planned_units"] == 1200


def test_a_clip_for_k_owners_keeps_the_loss_tolerated_and_as_many_are_certified() -> (
    None
):
    robust = (*PLAN, "--malicious", "2")
    assert "planned, not a certificate" in commands.said(*robust, "--owners", "1000")
    found = commands.document(*robust)
    asked, privacy = found["robustness"], found["task"]["privacy"]
    assert 0.2 < asked["loss_additions"] < asked["loss_replacements"] <= 0.5 + 1e-9
    most = asked["certified"]["clients_replaced"]
    assert most >= 2
    assert asked["certified"]["clients_added"] >= 2 * most
    # The certificate again, from the printed numbers.
    noise = 2**0.5 * privacy["noise_multiplier"] / privacy["client_clip"]
    one = events.poisson_gaussian(rate=0.1, noise_multiplier=noise, count=200)
    for k, holds in ((most, True), (most + 1, False)):
        certificate = Replacements(group_guarantees.ExactGroups(one))
        bounds = inefficacy.attack_bounds(
            0.2, 1.0, certificate, k, (Direction.ADDITIONS,)
        )
        assert (float(bounds.upper) <= 0.5) is holds
    # docs/privacy-accounting.md, "Planning": K=5, q=.01, T=1000, loss .5 from .2,
    # additions.
    five = PlannedRobustness(**USUAL, malicious=5, change="additions")
    ratio = five.clip_ratio(0.01, 1000)
    assert ratio == pytest.approx(0.706, abs=5e-4)
    rare = ["--record-rate", "0.1", "--client-rate", "0.01", "--rounds", "1000"]
    of_five = ["--malicious", "5", "--change", "additions", "--delta", "1e-5"]
    for epsilon, raised in (("1", False), ("30", True)):
        found = planned(*rare, *of_five, *MODEL, "--epsilon", epsilon)
        privacy = found["task"]["privacy"]
        clip, sigma = privacy["client_clip"], privacy["noise_multiplier"]
        assert clip / sigma == pytest.approx(ratio, rel=1e-3)
        # C is never below R: σ is raised instead.
        assert (clip == 1.0) is raised
        assert clip >= 1.0


def test_a_task_is_judged_as_it_is_and_gets_another_sigma_for_an_epsilon(
    large_task: str,
) -> None:
    as_it_is, other = (
        planned("--task", large_task, *wish) for wish in ((), ("--epsilon", "1"))
    )
    found, wanted = (each["task"]["privacy"] for each in (as_it_is, other))
    assert (found["noise_multiplier"], wanted["client_clip"]) == (2, 2)
    assert wanted["noise_multiplier"] == least_noise(
        epsilon=1.0, delta=1e-5, unit_rate=0.1, participations=34
    )
    assert other["statements"][0]["epsilon"] <= 1 < as_it_is["statements"][0]["epsilon"]


def test_proofs_plan_against_a_cheating_server(tmp_path: Path, large_task: str) -> None:
    proofs = task_file(tmp_path, f'validation = "proof"\n{LARGE}')
    *same, capped = planned("--task", proofs)["statements"]
    # All but what the range test adds, whose rows and half-width are others.
    known = planned("--task", large_task)["statements"]
    for each in (*same, *known):
        each.pop("rejection_delta")
    assert (same, capped["basis"], capped["malicious_server"]) == (known, "cap", True)
    assert capped["epsilon"] >= same[0]["epsilon"]


def test_where_norms_are_proved_a_plan_allows_for_hashes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a certificate does: with so many that a row is found, no owner's update is
    bounded."""
    robustness = PlannedRobustness(**USUAL, malicious=1, change="replacements")
    changes = {"privacy.noise_multiplier": 40.0, "privacy.client_clip": 1.0}
    shares, proofs = (
        task_with(changes | {"validation": v}) for v in ("crypten", "proof")
    )
    assert certified(proofs, robustness) == certified(shares, robustness)
    assert certified(proofs, robustness)["clients_added"] > 0
    monkeypatch.setattr("precad.certify.guarantee.HASHES", 2.0**100)
    assert certified(proofs, robustness)["clients_added"] == 0
    assert certified(shares, robustness)["clients_added"] > 0


USUAL = {"loss": 0.2, "tolerated_loss": 0.5, "loss_bound": 1.0}
WHOLE = ["account", *ACCOUNT, *CLIPS, "--fractional-bits", "20"]


def test_no_number_is_assumed_that_a_task_has() -> None:
    for line, options in ((WHOLE, WHOLE[1::2]), (LOOSE, LOOSE[1:13:2])):
        for left_out in options:
            at = line.index(left_out)
            told = refused(*line[:at], *line[at + 2 :])
            assert (f"give {left_out}" in told, "--task" in told) == (True, True), told


def test_a_number_beside_its_task_is_refused(large_task: str) -> None:
    of_plan = (
        "--owners",
        "--client-clip",
        "--dimension",
        "--continue",
        "--noise-multiplier",
    )
    pairs = [("account", "--noise-multiplier"), ("account", "--fractional-bits")]
    for command, twice in (*pairs, *(("plan", each) for each in of_plan)):
        assert f"leave {twice} out" in refused(
            command, "--task", large_task, twice, "3"
        )
    wishes = ["--records", "3x400", "--epsilon", "3", "--dimension", "7850"]
    model = ["--architecture", "logistic", "--features", "30", "--classes", "2"]
    assert "leave --architecture out" in refused("plan", *wishes, *model)


WRONG = [
    (
        WHOLE[:11],
        [
            ("--noise-multiplier 0", "noise_multiplier", "above 0"),
            ("--noise-multiplier 1e300", "noise_multiplier", "give 1e-06 to 1e+09"),
            (f"--rounds {10**15}", "rounds", "at most"),
            ("--record-clip 1", "client_clip", "give --client-clip"),
            ("--client-clip 1", "record_clip", "give --record-clip"),
        ],
    ),
    (
        PLAN,
        [
            ("--malicious 0", "malicious", "1 or more"),
            ("--malicious 1 --tolerated-loss 0.1", "tolerated_loss", "above 0.2"),
            ("", "client_clip", "or --malicious"),
            (
                "--client-clip 9 --noise-multiplier 2",
                "epsilon",
                "or --noise-multiplier",
            ),
            ("--client-clip 1e300", "client_clip", ""),
            ("--client-clip 0.1", "record_clip", "privacy.client_clip"),
            ("--client-clip 9 --epsilon 1e300", "epsilon", "at most 100:"),
            (f"--client-clip 9 --rounds {10**12}", "rounds", "at most"),
            (f"--client-clip 9 --dimension {10**15}", "", ""),
        ],
    ),
]


@pytest.mark.parametrize(
    ("command", "wrong", "field", "remedy"),
    [(line, *row) for line, rows in WRONG for row in rows],
)
def test_a_wrong_value_is_named(
    command: list[str], wrong: str, field: str, remedy: str
) -> None:
    told = refused(*commands.instead(command, *wrong.split()), "--json")
    assert (told.count("\n"), field in told, remedy in told) == (1, True, True), told


def test_only_poisson_sampling_is_accounted() -> None:
    for other in ("shuffle", "fixed-size"):
        told = refused(*WHOLE, "--sampling", other)
        assert f"'{other}' is not 'poisson'" in told
    assert "2 clips" in commands.precad("account", "--help").output


Played = Callable[..., Owner]


def says(code: int, *arguments: object, words: Sequence[str] = ()) -> str:
    result = commands.precad("ledger", *arguments, terminal_width=200)
    missing = [each for each in words if each not in result.output]
    assert (result.exit_code, missing) == (code, []), result.output
    return result.output


def mine(folder: Path, *more: object) -> Document:
    told: Document = json.loads(says(0, "mine", folder, "--json", *more))
    return told


def own_account(
    folder: Path,
    task: Task,
    limit: float | None = None,
    *,
    name: str = "participations.log",
    rate: float = 0.2,
) -> OwnAccount:
    return OwnAccount(task, rate, limit, folder / name, ClientId("ward-1"))


@pytest.fixture
def played(tmp_path: Path) -> Played:
    """``played("ward-1")``: an owner's folder after three versions, one of them
    twice."""

    def make(name: str = "ward-1", limit: float | None = None) -> Owner:
        twice: list[Event] = [Open(1, 1), Open(2, 1, charges=(1, 0)), Over(2, 1)]
        course: list[Event] = [Open(0, 0), Over(0, 0), *twice, Open(3, 2), Over(3, 2)]
        one = Owner(
            Script(task_with({}), course, ClientId(name)), tmp_path / name, limit
        )
        (tmp_path / name).mkdir()
        one.run()
        return one

    return make


class Restated(TypedDict, total=False):
    model_digest: bytes
    charged: list[int]


def restate(folder: Path, role: Role, **changes: Unpack[Restated]) -> None:
    path = folder / STATEMENT.format(role.value)
    body = pb.StatementBody.FromString(pb.Signed.FromString(path.read_bytes()).body)
    for name in changes:
        body.ClearField(name)  # type: ignore[arg-type]
    body.MergeFrom(pb.StatementBody(**changes))
    pen = signatures.CertificateSigner(
        keys.identity(party_certificate.Principal.service(role))
    )
    path.write_bytes(sign_body(pen, role, body).SerializeToString())


def test_the_sum_over_five_tasks_is_an_independent_compositions(tmp_path: Path) -> None:
    plan = [
        (2.0, 0.2, 1e-5, 4),
        (1.5, 0.1, 1e-5, 3),
        (3.0, 0.2, 1e-6, 5),
        (2.5, 0.05, 1e-5, 2),
    ]
    plan.append((4.0, 0.2, 1e-7, 1))
    composed = ExactAccountant()
    for sigma, rate, delta, versions in plan:
        task = task_with({"privacy.noise_multiplier": sigma, "privacy.delta": delta})
        own = own_account(tmp_path, task, 4.0, rate=rate)
        for version in range(versions):
            own.charge(version)
        step = events.poisson_gaussian(
            rate=rate, noise_multiplier=sigma, count=versions
        )
        if sigma == 4.0:
            # Repeated twice: as a list, one step with another σ, not three steps.
            own.charge(0, 2)
            step = events.poisson_gaussian(
                rate=rate, noise_multiplier=sigma / math.sqrt(3)
            )
        composed.compose(step)
    document = mine(tmp_path)
    assert (document["versions"], len(document["tasks"]), document["delta"]) == (
        15,
        5,
        1e-5,
    )
    assert document["epsilon"] == pytest.approx(composed.epsilon(1e-5), rel=1e-9)
    # By the limit's own order and its conversion, without the filter's code. Whoever cut
    # the link chose both repeats: each shows a record as it is.
    order = document["limit"]["order"]
    rho = math.fsum(
        n * float(rdp.sampled_gaussian_rdp(p, s, (order,))[0])
        for s, p, _, n in [*plan, (4.0, 1.0, 0, 2)]
    )
    slack = math.log1p(-1 / order) - (math.log(1e-5) + math.log(order)) / (order - 1)
    assert document["limit"]["filter_epsilon"] == pytest.approx(rho + slack)
    assert document["epsilon"] < document["limit"]["filter_epsilon"] < 4.0
    assert mine(tmp_path, "--delta", "1e-7")["epsilon"] == pytest.approx(
        composed.epsilon(1e-7)
    )


def test_mine_says_what_each_task_cost(played: Played, tmp_path: Path) -> None:
    one = played(limit=3.0)
    epsilon = f"exact ε of all together {one.open_account().epsilon():.4g} at δ = 1e-05"
    limit = "limit ε = 3 at δ = 1e-05, enforced by a Rényi filter"
    says(
        0, "mine", one.folder, words=[str(one.script.task.digest)[:12], epsilon, limit]
    )
    (row,) = mine(one.folder)["tasks"]
    assert (row["client"], row["versions"], row["further_releases"]) == ("ward-1", 3, 1)
    # A folder without charges, or without anything, is said.
    says(2, "mine", tmp_path, words=["holds no account"])
    says(2, "receipts", tmp_path, words=["no server's statement"])
    # Of a run's folder its owners' are named.
    for owner in ("ward-1", "ward-2"):
        (tmp_path / "run" / "state" / owner).mkdir(parents=True)
        for file in ("participations.log", "statement-server-a.bin"):
            (tmp_path / "run" / "state" / owner / file).touch()
    for command in ("mine", "receipts"):
        named = [f"give {tmp_path}/run/state/ward-1 or {tmp_path}/run/state/ward-2"]
        says(2, command, tmp_path / "run", words=named)
        says(2, command, tmp_path / "run" / "state", words=named)
    (tmp_path / "participations.log").touch()
    says(0, "mine", tmp_path, words=["nothing was shared yet"])


def test_only_a_limit_is_said_to_hold_against_a_malicious_one(tmp_path: Path) -> None:
    for check in ("proof", "crypten"):
        own_account(tmp_path, task_with({"validation": check}), 4.0, name=check).charge(
            0
        )
    limit, *lines = (tmp_path / "proof").read_text().splitlines(keepends=True)
    lines += (tmp_path / "crypten").read_text().splitlines(keepends=True)[1:]
    # As a version before wrote it.
    old = " ".join(["charge", *lines[0].split()[1:-2]])
    lines.append(f"{old} {hashlib.sha256(old.encode()).hexdigest()[:8]}\n")
    for kept, server in zip(
        (lines[:1], lines[1:2], lines[:2], lines[2:]),
        ("malicious", *["curious"] * 3),
        strict=True,
    ):
        (tmp_path / "participations.log").write_text("".join([limit, *kept]))
        document = mine(tmp_path)
        assert document["limit"].pop("server") == server
        # What a malicious server decided itself was fixed by no count.
        assert "malicious" not in json.dumps(document)
        told = says(0, "mine", tmp_path, words=["record level, one curious server"])
        assert ("the limit holds, not what was counted" in told) is (
            server == "malicious"
        )
    # A check of norms that is none is refused.
    path = tmp_path / "participations.log"
    *words, _, _ = lines[0].split()
    for check in ("neither", "", "FSS"):
        text = " ".join([*words, check])
        path.write_text(f"{text} {hashlib.sha256(text.encode()).hexdigest()[:8]}\n")
        says(2, "mine", tmp_path, words=["can't be read"])


def test_receipts_that_agree_are_sound_and_another_model_is_found(
    played: Played,
) -> None:
    one = played()
    words = ["server-a: client ward-1", "server-b: client ward-1", "charged [3]"]
    assert says(0, "receipts", one.folder, words=words).endswith("sound\n")
    document = json.loads(says(0, "receipts", one.folder, "--json"))
    assert (document["sound"], document["server-b"]["version"]) == (True, 3)
    restate(one.folder, Role.SERVER_B, model_digest=b"\5" * 32)
    words = [
        "the servers signed different models 3: 05050505",
        "server-b signed 05",
        "BROKEN",
    ]
    says(1, "receipts", one.folder, words=words)


def test_a_charge_for_what_was_never_shared_is_found_and_no_other(
    played: Played,
) -> None:
    one = played()
    for charged in ([4], [1, 2], [2, 0, 1]):
        restate(one.folder, Role.SERVER_A, charged=charged)
        says(
            1, "receipts", one.folder, words=["server-a charged", "this owner knows of"]
        )
    for charged in ([2], [2, 1], [3], []):
        restate(one.folder, Role.SERVER_A, charged=charged)
        assert "this owner knows of" not in says(0, "receipts", one.folder)


def test_a_version_for_which_zeros_were_sent_may_be_charged(played: Played) -> None:
    """Servers can't tell zeros from an update: that is no finding."""
    one = played()
    restate(one.folder, Role.SERVER_A, charged=[4])
    says(1, "receipts", one.folder, words=["this owner knows of"])
    zeros = Covered(task=one.script.task.digest, client="ward-1", version=3)
    Account(one.folder / ACCOUNT_FILE).cover(zeros)
    assert says(0, "receipts", one.folder).endswith("sound\n")


def test_another_owner_who_was_shown_another_model_is_found(played: Played) -> None:
    one, two = played(), played("ward-2")
    says(0, "receipts", one.folder, "--other", two.folder)
    log = two.folder / "models.log"
    lines = log.read_text().splitlines()
    task, version, _ = lines[1].split(" ")
    lines[1] = f"{task} {version} {Digest(bytes(32))}"
    log.write_text("\n".join(lines) + "\n")
    says(
        1, "receipts", one.folder, "--other", two.folder, words=[f"model {version} was"]
    )


def test_an_account_elsewhere_and_signatures_are_looked_at(
    played: Played, tmp_path: Path
) -> None:
    one, account, files = played(), tmp_path / "account", tmp_path / "keys"
    account.mkdir()
    shutil.move(one.folder / "participations.log", account)
    says(1, "receipts", one.folder)
    says(0, "receipts", one.folder, "--account", account)

    own = keys.identity(party_certificate.Principal.client("ward-1"))
    files.mkdir()
    for name, pem in {"ca": own.ca, "cert": own.cert, "key": own.key.reveal()}.items():
        (files / f"{name}.pem").write_bytes(pem)
        (files / f"{name}.pem").chmod(0o600)
    signed = ("receipts", one.folder, "--account", account, "--identity", files)
    says(0, *signed)
    path = one.folder / STATEMENT.format(Role.SERVER_A.value)
    shutil.copy(one.folder / STATEMENT.format(Role.SERVER_B.value), path)
    says(1, *signed, words=["what server-a is to have signed"])


def test_mine_and_the_doctor_say_what_is_left_of_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    training = "noise_multiplier = 2.0\nrecord_rate = 0.2\nrounds = 5\nrepeats = 1\n"
    plan.write_text(f"delta = 1e-5\npurse = 0.3\n[[training]]\n{training}", "utf-8")
    log = tmp_path / "participations.log"
    task = task_with({"privacy.noise_multiplier": 2.0, "training.rounds": 9})
    own = OwnAccount(task, 0.2, None, log, ClientId("ward-1"), plan=plan)
    own.charge(0)
    own.charge(1, 1)
    (found,) = look_at_limit(task, own)
    assert "allows 3 more, after 2, of the task's 9 rounds" in found.text
    assert "plan has no more: only other records" in found.text
    limit = mine(tmp_path)["limit"]
    assert limit["epsilon"] == PlanLimit.load(plan).epsilon
    assert (limit["order"], limit["only_task"], limit["raised"]) == (None, None, False)
    assert limit["plan"]["purse"] == pytest.approx(math.sqrt(0.09 + 0.25))
    # The repeat was paid from it.
    assert limit["plan"]["purse_left"] == pytest.approx(0.3)
    (row,) = limit["plan"]["trainings"]
    assert (row["rounds"], row["rounds_left"]) == (5, 3)
    says(0, "mine", tmp_path, words=["a plan, whose purse has μ = 0.3 left of 0.5831"])
