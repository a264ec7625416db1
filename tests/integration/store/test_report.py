"""`precad report` over two servers' databases: what it says, and that it needs nothing
else."""

import html
import json
import math
import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import small_task
from tests.rig.browser import VIEWS, browsing, faults
from tests.rig.commands import document, precad
from tests.rig.documents import Document
from tests.rig.meeting import ANN, BEN, Servers
from tests.rig.stores import (
    NEXT,
    A,
    Opener,
    enrolled,
    lost,
    prepared,
    released,
    sent,
    tamper,
)

from precad.accounting import adversaries, events
from precad.accounting.guarantees import advantages, honest_rejection, spent
from precad.aggregator.store import Store, open_store, read_training
from precad.cli.report_html import page
from precad.cli.report_page import (
    Report,
    ReportedGuarantee,
    enforced,
    guarantee_sentence,
    least,
    most,
    not_guaranteed,
    summary,
)
from precad.cli.report_sources import gather
from precad.client.results import Results
from precad.common.errors import Rejection
from precad.common.identifiers import Role
from precad.common.task import Task
from precad.common.terminal import between
from precad.common.wire.messages import Statement

ROUNDS = 3
SERVERS = (Role.SERVER_A, Role.SERVER_B)
SECTIONS = (
    "training guarantees accuracy robustness inputs submissions enforced ledgers limits"
)
HEIGHTS = """Object.fromEntries([...document.querySelectorAll("section")].map(
    (section) => [section.id, section.getBoundingClientRect().height]))"""
HOSTILE = "<script>alert(1)</script>"
invoke = partial(precad, "report")


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task(8, {"privacy.epsilon_limit": 5.0})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, task: Task) -> Path:
    return finished_run(tmp_path_factory.mktemp("finished") / "run", task)


def finished_run(folder: Path, task: Task) -> Path:
    """A finished run's folder: three rounds, two owners counted and one absent in
    each."""
    for role in SERVERS:
        (folder / "state" / role.value).mkdir(parents=True)
        url = f"sqlite:///{folder}/state/{role.value}/state.db"
        store = enrolled(open_store(url, task, role, None))
        for number in range(ROUNDS):
            released(store, number, number)
        store.close()
    rows = "".join(f"{n},{0.5 + n / 10}\n" for n in range(1, ROUNDS + 1))
    (folder / "history.csv").write_text(f"round,accuracy\n{rows}")
    (folder / "summary.json").write_text(json.dumps({"dataset": HOSTILE}))
    return folder


@dataclass(frozen=True, slots=True)
class Finished:
    """A copy of such a run, which a test may go on with."""

    folder: Path
    opener: Opener

    def url(self, role: Role) -> str:
        return f"sqlite:///{self.folder}/state/{role.value}/state.db"

    @contextmanager
    def store(self, role: Role = Role.SERVER_A) -> Iterator[Store]:
        with closing(self.opener(self.url(role), role=role)) as store:
            yield store

    def facts(self, *given: Path, exit_code: int = 0) -> Report:
        out = self.folder / "report.json"
        done = invoke(*(given or (self.folder,)), "--format", "json", "--out", out)
        assert done.exit_code == exit_code, done.output
        return Report.model_validate_json(out.read_text())

    def page_of(self, given: Path) -> str:
        """Of one folder, as text."""
        return html.unescape(re.sub(r"<[^>]*>", "", page(gather([str(given)]))))

    def page(self, exit_code: int = 0) -> tuple[str, str, str]:
        """What the command says; the page that it writes, and the text on it."""
        out = self.folder / "report.html"
        done = invoke(self.folder, "--out", out)
        assert done.exit_code == exit_code, done.output
        source = out.read_text(encoding="utf-8") if out.exists() else ""
        return done.output, source, html.unescape(re.sub(r"<[^>]*>", "", source))


@pytest.fixture
def run(finished: Path, tmp_path: Path, opener: Opener) -> Finished:
    return Finished(Path(shutil.copytree(finished, tmp_path / "run")), opener)


def test_a_page_needs_no_script_and_no_network_and_says_who_what(
    run: Finished, task: Task
) -> None:
    _, source, text = run.page()
    assert not re.findall(r"<(script|link|iframe|object|embed|img)\b|\son\w+=", source)
    assert not re.findall(
        r"""\s(?:src|href|xlink:href|action)\s*=\s*["']?(?!["'#])""", source
    )
    assert not re.findall(r"url\((?!#)|@import", source)
    assert "default-src 'none'" in source
    # What comes from a file is text and never markup.
    assert (HOSTILE in source, HOSTILE in text) == (False, True)
    said = " ".join(text.split())
    for words in (
        "ward-a, ward-b, ward-c trained a model of 8 weights",
        str(task.digest),
        "sound, and both hold the same",
        "80.0% right answers",
        "6 submissions were counted",
        "a wrong number makes everybody's steps too short or too long",
        "what enrolled owners claim",
    ):
        assert words in said
    assert f"{Rejection.ABSENT.value}3" in said.replace(" ", "")


def test_a_browser_shows_it_without_a_fault_and_prints_it(
    run: Finished, tmp_path: Path
) -> None:
    run.page()
    address = (run.folder / "report.html").as_uri()
    with browsing(tmp_path) as seen:
        for name, size, scheme in VIEWS:
            seen.open(address, size, scheme)
            assert (
                name,
                {kind: each for kind, each in faults(seen).items() if each},
            ) == (name, {})
            assert (seen.errors(), seen.requests()) == ([], [address])
            heights = seen.run(HEIGHTS)
            assert set(heights) == {*SECTIONS.split()}
            assert min(heights.values()) > 50
            seen.picture(tmp_path / f"report-{name}.png")
        seen.prefer("dark", media="print")
        assert (
            seen.run("getComputedStyle(document.body).backgroundColor")
            == "rgb(255, 255, 255)"
        )
        assert not [found for found in faults(seen).values() if found]
        seen.picture(tmp_path / "report-print.png")


def test_no_number_of_a_guarantee_on_a_page_is_less_than_it_is(run: Finished) -> None:
    _, page, _ = run.page()
    table = page.partition("added to δ")[2].partition("</table>")[0]
    written = re.findall(r'<td class="n">([^<]*)</td>', table)[::2]
    cells = [math.inf if cell == "none" else float(cell) for cell in written]
    guarantees = run.facts().guarantees
    real = [
        n
        for each in guarantees
        for n in (each.epsilon, each.added_delta)
        if n is not None
    ]
    assert len(real) == 2 * len(guarantees) > 0
    assert all(shown >= exact for shown, exact in zip(cells, real, strict=True))
    # Beside a δ of 1 no ε says anything.
    added = [each.added_delta or 0 for each in guarantees]
    assert [epsilon == "none" for epsilon in written[::2]] == [
        delta >= 1 for delta in added
    ]
    assert {delta >= 1 for delta in added} == {True, False}
    (headline,) = re.findall(r"<b>ε (\S+)</b> of a record", page)
    assert float(headline) >= real[0]


def test_the_json_obeys_its_schema_and_names_no_owners_participations(
    run: Finished, tmp_path: Path
) -> None:
    found = run.facts()
    text = (run.folder / "report.json").read_text()
    assert set(json.loads(text)) == set(
        json.loads(invoke("--schema").stdout)["properties"]
    )
    server = next(g for g in found.guarantees if g.protects == "record")
    assert (server.participations, server.limit) == (ROUNDS, 5.0)
    assert server.epsilon == pytest.approx(found.rounds[-1].epsilon_server)
    # The exact trade-off lies below what ε and δ say by themselves.
    assert server.epsilon is not None
    assert 5 < server.found_of_100 < 100 * (2.72**server.epsilon * 0.05 + server.delta)
    assert not re.search(r'"ward-[abc]": ?\d', text)
    assert {each.unit for each in found.robustness} == {"records", "owners"}
    for each in found.robustness:
        assert each.assumed.startswith(", assuming the same claims")
        assert all(bound.lower <= each.error <= bound.upper for bound in each.bounds)
    # Two state folders are enough, and one is said to be alone.
    b, a = (run.folder / "state" / name for name in ("server-b", "server-a"))
    both = run.facts(b, a)
    assert [each.server for each in both.ledgers] == ["server-a", "server-b"]
    assert (both.differences, both.accuracy, both.robustness) == ([], None, [])
    assert run.facts(b).differences is None
    # So is the folder of `precad setup`, which has both and no history.
    folder = tmp_path / "setup"
    (folder / "state").mkdir(parents=True)
    for state in (a, b):
        (folder / "state" / state.name).symlink_to(state)
    assert run.facts(folder).ledgers == both.ledgers


def test_bounds_on_attackers_say_what_they_assume_unless_the_task_plans_its_divisor(
    run: Finished,
) -> None:
    _, _, text = run.page()
    said = " ".join(text.split())
    bounds = re.findall(r"leave an expected error[^:]*?\(not where a task", said)
    assert len(bounds) == said.count("leave an expected error") > 0
    planned = small_task(8, {"enrolment.planned_units": 30})
    assert planned.mechanism.assumed_of_claims == ""
    (sizes,) = (each for each in not_guaranteed(planned) if "How many" in each)
    assert "decides how often its own are sampled, and nothing else" in sizes
    rules = {rule.what: rule.value for rule in enforced(planned)}
    assert rules["a round's sum is divided by"].startswith("6, as planned")


def test_of_a_weighted_task_it_is_said_what_its_probabilities_are() -> None:
    weighted = small_task(8, {"training.class_weights": [0.1, 1.0]})
    (said,) = (each for each in not_guaranteed(weighted) if "weighs classes" in each)
    assert "Brier score and calibration" in said
    assert not any("weighs classes" in each for each in not_guaranteed(small_task(8)))


def test_sound_ledgers_that_differ_are_exit_1_too(run: Finished) -> None:
    with run.store(Role.SERVER_B) as store:
        prepared(store, ROUNDS, ROUNDS)
    found = run.facts(exit_code=1)
    assert [ledger.findings for ledger in found.ledgers] == [[], []]
    assert found.differences
    assert found.differences[0] in run.page(1)[0]
    tamper(
        run.url(Role.SERVER_B),
        "DELETE FROM charge WHERE attempt = 1 AND client = 'ward-a'",
    )
    said, page, _ = run.page(1)
    assert "not sound" in page
    assert "server-b: entry 2: its content or its charges were changed" in said


def test_what_can_not_be_reported_is_said_with_its_remedy(run: Finished) -> None:
    folder, new = run.folder.parent, run.folder.parent / "new"
    new.mkdir()
    run.opener(f"sqlite:///{new}/state.db").close()
    again = f"sqlite:///{run.folder}/state/server-a/../server-a/state.db"
    wrong: dict[str, tuple[object, ...]] = {
        "give a finished run's folder": (),
        "holds neither history.csv": (folder,),
        "give one database of each": (run.folder, again),
        "there is no such folder": (run.folder, "--out", folder / "no" / "x.html"),
        "no round was released yet": (new,),
    }
    for said, given in wrong.items():
        done = invoke(*given)
        assert (done.exit_code, "Traceback" in done.output) == (2, False), said
        assert said in done.output


@pytest.mark.parametrize("role", SERVERS)
def test_a_charge_in_one_ledger_that_was_never_released_counts(
    run: Finished, role: Role
) -> None:
    """Its share may have left: another database, put back from a copy, doesn't know of
    it."""
    before = run.facts()
    with run.store(role) as store:
        sent(store, ROUNDS, ROUNDS)
    after = run.facts(exit_code=1)
    assert after.training.released == ROUNDS
    assert len(before.guarantees) == len(after.guarantees)
    for old, new in zip(before.guarantees[:3], after.guarantees[:3], strict=True):
        assert new.participations == old.participations + 1
        assert old.epsilon is None or (
            new.epsilon is not None and new.epsilon > old.epsilon
        )
    assert after.taken == [
        "the ledgers differ: whatever either of them charges counts here"
    ]
    assert after.rounds[-1].epsilon_server == pytest.approx(after.guarantees[0].epsilon)


def test_what_only_an_owner_remembers_counts(run: Finished) -> None:
    """Both databases were put back, and the owner has the servers' word for two rounds
    more."""
    more = ROUNDS + 2
    with run.store() as store:
        word = Statement(
            task_digest=store.task.digest.value,
            client=A.name,
            version=more,
            model_digest=NEXT.value,
            charged=(more,),
            attempt=more,
            counted=True,
            answered={},
            opened=more,
            signed=b"",
        )
        store.statements.keep(word)
    assert run.facts().guarantees[0].participations == more
    clients = read_training(run.url(Role.SERVER_A)).clients
    assert {each.client: each.participations for each in clients}[A] == more


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_a_training_that_is_not_over_says_so_and_what_holds_whenever_it_ends(
    validation: str, tmp_path: Path, url: str, opener: Opener
) -> None:
    """Who stops it because of its loss has chosen T: what was counted so far is no bound then.

    And a malicious server's cap is that of all rounds, not of those so far.
    """
    planned = 10
    task = small_task(8, {"validation": validation})
    store = enrolled(opener(url, task=task))
    for number in range(planned):
        released(store, number, number)
        if number == ROUNDS - 1:
            broken_off = Finished(tmp_path, opener).facts()
            page = " ".join(Finished(tmp_path, opener).page_of(tmp_path).split())
    over = Finished(tmp_path, opener).facts()
    so_far, at_cap = broken_off.guarantees[:3], broken_off.guarantees[3:]
    assert [each.participations for each in so_far] == [ROUNDS] * 3
    assert [each.participations for each in at_cap] == [planned] * 3
    assert {each.when for each in so_far} == {f"after {ROUNDS} of {planned} rounds"}
    moment = "whenever the training ends, with no more releases repeated"
    assert {each.when for each in at_cap} == {moment}
    assert all("the cap" in each.basis for each in at_cap)
    # What is said then is what is said at its end, and nothing said so far is.
    ends = [(each.protects, each.epsilon) for each in over.guarantees[:3]]
    assert [(each.protects, each.epsilon) for each in at_cap] == ends
    assert all(
        some.epsilon is None or some.epsilon < (each.epsilon or math.inf)
        for some, each in zip(so_far, at_cap, strict=True)
    )
    malicious = [
        each
        for found in (broken_off, over)
        for each in found.guarantees
        if each.against == adversaries.MALICIOUS_SERVER
    ]
    expected = at_cap[:1] + over.guarantees[3:] if validation == "proof" else []
    assert malicious == expected
    assert len({each.epsilon for each in malicious}) <= 1
    assert "of a record so far" in page
    assert f"{moment.capitalize()}, against other clients only" in page


def test_a_restored_server_reports_what_it_learned_again(tmp_path: Path) -> None:
    """Its charges, its rounds and its newest model, as if nothing had happened."""
    servers = Servers(small_task(4, {"validation": "proof"}), tmp_path)
    rounds = 10
    for number in range(rounds):
        if number == ROUNDS:
            backup = servers.copy(Role.SERVER_A)
        servers.attempt(number)
    before = gather([str(tmp_path / "server-b")])
    servers.put_back(Role.SERVER_A, backup)
    servers.mend()
    servers.close()
    a, b = (str(tmp_path / role.value) for role in SERVERS)
    for given in ([a], [a, b]):
        after = gather(given)
        assert after.guarantees == before.guarantees
        assert after.training == before.training
        assert [each.counted for each in after.rounds] == [2] * rounds
        assert after.rounds[-1].epsilon_server == before.rounds[-1].epsilon_server
        assert (after.differences or []) == []
        (said,) = after.taken
        assert f"server-a's database released {ROUNDS} of {rounds} rounds" in said
    alone = gather([a])
    assert [each.rejected is None for each in alone.rounds] == [
        number >= ROUNDS for number in range(rounds)
    ]
    assert (
        f"of {rounds - ROUNDS} rounds the databases given have forgotten"
        in " ".join(html.unescape(page(alone)).split())
    )
    assert all(each.rejected == {} for each in gather([a, b]).rounds)
    # A server's own summary says the same.
    view = document("ledger", "show", a)
    assert view["totals"]["rounds_released"] == rounds
    (row, _) = view["clients"]
    assert row["participations"] == rounds
    assert row["epsilon"] == pytest.approx(before.guarantees[0].epsilon, rel=1e-12)


def test_before_it_has_learned_both_databases_together_say_all(tmp_path: Path) -> None:
    """Each put back once, each knows of charges that the other lacks."""
    servers = Servers(small_task(4), tmp_path)
    for number in range(4):
        servers.attempt(number, valid=(ANN,) if number % 2 else (BEN,))
        if number == 0:
            backups = {role: servers.copy(role) for role in SERVERS}
    truth = gather([str(tmp_path / role.value) for role in SERVERS])
    (view,) = {
        document("ledger", "show", tmp_path / role.value)["totals"]["epsilon_max"]
        for role in SERVERS
    }
    servers.put_back(Role.SERVER_A, backups[Role.SERVER_A], journal=True)
    # B has lost the charge of attempt 0, as whoever may write there could have it.
    store = servers.sessions[Role.SERVER_B].store
    servers.close()
    assert store.task == servers.task
    tamper(
        f"sqlite:///{tmp_path}/server-b/state.db",
        "DELETE FROM charge WHERE attempt = 0",
        "UPDATE participation SET versions = 1 WHERE client = 'ben'",
    )
    found = gather([str(tmp_path / role.value) for role in SERVERS])
    assert found.guarantees == truth.guarantees
    assert found.guarantees[0].participations == 2
    assert found.guarantees[0].epsilon == pytest.approx(view, rel=1e-12)
    assert found.differences
    assert "the ledgers differ: whatever either of them charges counts here" in (
        found.taken
    )


def test_two_newest_models_are_a_difference(run: Finished) -> None:
    tamper(
        run.url(Role.SERVER_B),
        "UPDATE attempt SET next_model = model WHERE version = 2",
    )
    (said,) = run.facts(exit_code=1).differences or []
    assert said.startswith("the newest model: ")
    assert all(role.value in said for role in SERVERS)


SMOOTHING: Document = {
    "sigma": 0.25,
    "copies": 10_000,
    "confidence": 0.999,
    "points": 359,
    "abstained": 12,
    "average_certified_radius": 0.4321,
    "certified_accuracy": {"0.0": 0.9, "0.25": 0.74999},
}


def test_what_was_certified_of_changed_inputs_is_in_the_same_report(
    run: Finished,
) -> None:
    summary = run.folder / "summary.json"
    summary.write_text(json.dumps({"robustness": {"smoothing": SMOOTHING}}))
    inputs = run.facts().inputs
    assert inputs is not None
    assert inputs.model_dump() == SMOOTHING
    for words in (
        "mean radius is 0.432",
        "10,000 noisy copies",
        "359 public inputs 12",
        "74.9%",
    ):
        assert words in run.page()[2]
    summary.write_text(json.dumps({"robustness": {"smoothing": {"sigma": -1}}}))
    assert "certificates of changed inputs" in run.page(2)[0]


def test_where_bounds_follow_sizes_an_owners_least_and_most_epsilon_are_reported(
    tmp_path: Path,
) -> None:
    clip = {"per_record": 1.0, "most": 30.0}
    task = small_task(8, {"privacy.client_clip": clip, "privacy.noise_multiplier": 30})
    found = gather([str(finished_run(tmp_path / "run", task))])
    record, _, owner, *_ = found.guarantees
    assert (record.protects, owner.protects) == ("record", "owner")
    assert record.least_epsilon is None
    assert owner.least_epsilon is not None
    assert owner.epsilon is not None
    assert 0 < owner.least_epsilon <= owner.epsilon
    (sentence,) = (
        line
        for line in summary(found)
        if "organisation" in line and "after 3 of" in line.lower()
    )
    assert f"ε = {between(owner.least_epsilon, owner.epsilon, 3)} at" in sentence
    assert "by size" in sentence
    rules = {rule.what: rule.value for rule in found.enforced}
    assert "on average" in rules["an owner's update has a norm of at most (C)"]


def test_a_bound_is_rounded_away_and_no_protection_is_called_that() -> None:
    assert (least(0.12399), most(0.12301)) == ("12.3%", "12.4%")
    said = ReportedGuarantee(
        protects="record", when="after 60 of 60 rounds", against="anyone", epsilon=1.0,
        delta=1e-5, added_delta=0.0, participations=60, basis="counted", limit=None,
        found_of_100=21.2,
    )  # fmt: skip
    assert "at most 22 of 100" in guarantee_sentence(said)
    none = said.model_copy(
        update={"protects": "owner", "epsilon": 1732.0, "found_of_100": 100.0}
    )
    assert "is not protected" in guarantee_sentence(none)


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_what_is_added_to_delta_is_all_that_the_guarantee_has_beside_it(
    validation: str, tmp_path: Path, url: str, opener: Opener
) -> None:
    """Honest rejection; and broken cryptography where a malicious server is meant."""
    task = small_task(8, {"privacy.epsilon_limit": 5.0, "validation": validation})
    released(enrolled(opener(url, task=task)))
    found = Finished(tmp_path, opener).facts().guarantees
    malicious = [each.against == adversaries.MALICIOUS_SERVER for each in found]
    assert malicious == [False] * 3 + [validation == "proof"] + [False] * 2
    # In the one round that was released, and in all that may follow.
    run = adversaries.Run.of(task)
    so_far = replace(run, attempts=task.training.attempts)
    runs = [so_far] * 3 + [run] * 3
    for each, broken, run in zip(found, malicious, runs, strict=True):
        epsilon = math.inf if each.epsilon is None else each.epsilon
        added = honest_rejection(epsilon, run) + (
            advantages(epsilon, run) if broken else 0.0
        )
        assert each.added_delta == pytest.approx(added, rel=1e-9, abs=0)


def test_a_version_released_twice_raises_what_is_guaranteed(
    run: Finished, task: Task
) -> None:
    """The report names nobody's repeats: every round is accounted as the one that has
    the most."""
    before = run.facts()
    for role in SERVERS:
        with run.store(role) as store:
            lost(store, ROUNDS, ROUNDS)
            released(store, ROUNDS + 1, ROUNDS)
    after = run.facts()
    assert before.guarantees[0].participations == ROUNDS
    assert after.guarantees[0].participations == ROUNDS + 1
    noise, rate = task.privacy.noise_multiplier / math.sqrt(2), task.privacy.record_rate
    event = events.poisson_gaussian(rate=rate, noise_multiplier=noise, count=ROUNDS + 1)
    assert after.guarantees[0].epsilon == pytest.approx(
        spent(event, task.privacy.delta)
    )


def test_what_an_owner_measured_is_on_the_page_with_intervals_and_what_it_is_not(
    run: Finished, tmp_path: Path
) -> None:
    model = run.facts().training.model_digest
    rows = [
        {"name": "R²", "of": "stay", "value": 0.8384, "low": 0.8015, "high": 0.8684},
        *(
            {
                "name": "calibration: share that is yes",
                "of": HOSTILE,
                "predicted": 5.83 + place,
                "value": 6.0,
                "low": 5.0,
                "high": 7.0,
            }
            for place in range(3)
        ),
    ]
    file = tmp_path / "results.json"
    told = {"model": model, "records": 300, "target": "stay", "measures": rows}
    file.write_text(json.dumps({"version": 3, **told}))
    out = run.folder / "report.html"
    taken = invoke(run.folder, "--results", file, "--out", out)
    assert taken.exit_code == 0, taken.output
    source = out.read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]*>", "", source))
    assert HOSTILE not in source
    for words in ("0.8015 to 0.8684", "300 records", "not differentially private"):
        assert words in text
    assert "results-caption" in source
    # Where there is an accuracy it isn't said that there is none.
    shutil.copytree(run.folder / "state", tmp_path / "owner" / "state")
    owner = tmp_path / "owner" / "report.html"
    invoke(tmp_path / "owner", "--results", file, "--out", owner)
    assert "No accuracy was measured" not in owner.read_text(encoding="utf-8")
    # The same run's report may be written again, which is said.
    assert "was there already" not in taken.stderr
    again = invoke(run.folder, "--results", file, "--out", out)
    assert f"{out} was there already, and is replaced" in again.stderr
    facts = run.folder / "report.json"
    invoke(run.folder, "--results", file, "--format", "json", "--out", facts)
    results = Report.model_validate_json(facts.read_text()).results
    assert isinstance(results, Results)
    assert results.measures[0].low == 0.8015
    for document_, why in (
        (told | {"model": "00"}, "is of another run"),
        (told | {"measures": 1}, "precad evaluate --json"),
    ):
        file.write_text(json.dumps(document_))
        wrong = invoke(run.folder, "--results", file, "--out", out)
        assert (wrong.exit_code, why in wrong.output) == (2, True), wrong.output
