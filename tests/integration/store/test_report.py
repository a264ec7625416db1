"""`precad report` over two servers' databases: what it says, and that it needs nothing else."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.integration.store.conftest import NEXT, Bind, Opener, Prepare, tamper
from tests.rig.browser import VIEWS, browsing, faults
from tests.rig.commands import precad

from precad.accounting.adversaries import MALICIOUS_SERVER, Run
from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import advantages, honest_rejection, spent
from precad.aggregator.store import Store, open_store, read_training
from precad.cli.report import Guarantee, Report, guarantee_sentence, least, most
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.common.wire.messages import Statement

ROUNDS = 3
SECTIONS = {
    *("training", "guarantees", "accuracy", "robustness", "inputs"),
    *("submissions", "enforced", "ledgers", "limits"),
}
HEIGHTS = """Object.fromEntries([...document.querySelectorAll("section")].map(
    (section) => [section.id, section.getBoundingClientRect().height]))"""
HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def task(make_task: Callable[..., Task]) -> Task:
    return make_task(8, {"privacy.epsilon_limit": 5.0})


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory,
    task: Task,
    enrolled: Callable[[Store], Store],
    prepared: Prepare,
    bind: Bind,
) -> Path:
    """A finished run's folder: three rounds, two owners counted and one absent in each."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    for role in (Role.SERVER_A, Role.SERVER_B):
        state = folder / "state" / role.value
        state.mkdir(parents=True)
        store = enrolled(open_store(f"sqlite:///{state}/state.db", task, role, None))
        for number in range(ROUNDS):
            prepared(store, number, version=number)
            bind(store, number, number)
            store.attempts.finish(number, NEXT)
        store.close()
    rows = "".join(f"{n},{0.5 + n / 10}\n" for n in range(1, ROUNDS + 1))
    (folder / "history.csv").write_text(f"round,accuracy\n{rows}")
    (folder / "summary.json").write_text(json.dumps({"dataset": HOSTILE}))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


invoke = partial(precad, "report")


def facts(out: Path, *given: object, exit_code: int = 0) -> Report:
    done = invoke(*given, "--format", "json", "--out", out)
    assert done.exit_code == exit_code, done.output
    return Report.model_validate_json(out.read_text())


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def file(finished: Path) -> Path:
    done = invoke(finished, "--out", finished.parent / "report.html")
    assert done.exit_code == 0, done.output
    return finished.parent / "report.html"


@pytest.fixture
def page(file: Path) -> tuple[str, Page]:
    found = file.read_text(encoding="utf-8")
    return found, Page(found)


def test_a_page_needs_no_script_no_network_and_no_other_file(page: tuple[str, Page]) -> None:
    source, seen = page
    assert not {"script", "link", "iframe", "object", "embed", "img"} & {t for t, _ in seen.tags}
    for _, attributes in seen.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"src", "href", "xlink:href", "action"}:
                assert str(value).startswith("#"), value
    assert not re.findall(r"url\((?!#)|@import", source)
    assert "default-src 'none'" in source
    # What comes from a file is text and never markup.
    assert HOSTILE not in source
    assert HOSTILE in seen.text


def test_a_browser_shows_it_without_a_fault_light_dark_narrow_and_on_paper(
    file: Path, tmp_path: Path
) -> None:
    address = file.as_uri()
    with browsing(tmp_path) as seen:
        for name, size, scheme in VIEWS:
            seen.open(address, size, scheme)
            assert (name, {kind: each for kind, each in faults(seen).items() if each}) == (name, {})
            assert (seen.errors(), seen.requests()) == ([], [address])
            heights = seen.run(HEIGHTS)
            assert set(heights) == SECTIONS
            assert min(heights.values()) > 50
            seen.picture(tmp_path / f"report-{name}.png")
        seen.prefer("dark", media="print")
        assert seen.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not [found for found in faults(seen).values() if found]
        seen.picture(tmp_path / "report-print.png")


def test_a_page_says_who_what_and_that_both_ledgers_hold_the_same(
    page: tuple[str, Page], task: Task
) -> None:
    _, seen = page
    said = " ".join(seen.text.split())
    assert "ward-a, ward-b, ward-c trained a model of 8 weights" in said
    assert str(task.digest) in said
    assert "sound, and both hold the same" in said
    assert "80.0% right answers" in said
    assert f"{Rejection.ABSENT.value}3" in said.replace(" ", "")
    assert "6 submissions were counted" in said


def test_no_number_of_a_guarantee_on_a_page_is_less_than_it_is(
    page: tuple[str, Page], run: Path, tmp_path: Path
) -> None:
    table = page[0].partition("added to δ")[2].partition("</table>")[0]
    cells = re.findall(r'<td class="n">([^<]*)</td>', table)
    said = zip(cells[::4], cells[2::4], strict=True)
    guarantees = facts(tmp_path / "report.json", run).guarantees
    assert guarantees
    for (epsilon, added), each in zip(said, guarantees, strict=True):
        assert each.epsilon is not None
        assert float(epsilon) >= each.epsilon
        assert each.added_delta is not None
        assert float(added) >= each.added_delta
    (headline,) = re.findall(r"<b>ε (\S+)</b> of a record", page[0])
    assert float(headline) >= (guarantees[0].epsilon or math.inf)


def test_the_document_as_json_obeys_its_schema_and_names_no_owners_participations(
    run: Path, tmp_path: Path, task: Task
) -> None:
    out = tmp_path / "report.json"
    found = facts(out, run)
    schema = json.loads(invoke("--schema").stdout)
    assert set(json.loads(out.read_text())) == set(schema["properties"])
    server = next(g for g in found.guarantees if g.protects == "record")
    assert (server.participations, server.limit) == (ROUNDS, task.privacy.epsilon_limit)
    assert server.epsilon == pytest.approx(found.rounds[-1].epsilon_server)
    # The exact trade-off lies below what ε and δ say by themselves.
    assert server.epsilon is not None
    assert 5 < server.found_of_100 < 100 * (2.72**server.epsilon * 0.05 + server.delta)
    assert not re.search(r'"ward-[abc]": ?\d', out.read_text())
    assert {each.unit for each in found.robustness} == {"records", "owners"}
    for each in found.robustness:
        for bound in each.bounds:
            assert bound.lower <= each.error <= bound.upper


def test_two_state_folders_are_enough_and_one_is_said_to_be_alone(
    run: Path, tmp_path: Path
) -> None:
    states = [run / "state" / name for name in ("server-b", "server-a")]
    out = tmp_path / "x.json"
    both = facts(out, *states)
    assert [each.server for each in both.ledgers] == ["server-a", "server-b"]
    assert (both.differences, both.accuracy, both.robustness) == ([], None, [])
    assert facts(out, states[0]).differences is None


def test_a_changed_ledger_is_exit_1_and_the_document_says_so(run: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{run}/state/server-b/state.db"
    tamper(url, "DELETE FROM charge WHERE attempt = 1 AND client = 'ward-a'")
    done = invoke(run, "--out", tmp_path / "report.html")
    assert done.exit_code == 1
    assert "server-b: entry 2: its content or its charges were changed" in done.output
    assert "not sound" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("what", ["nothing", "folder", "twice", "out", "empty"])
def test_what_can_not_be_reported_is_said_with_its_remedy(
    what: str, run: Path, tmp_path: Path, opener: Opener
) -> None:
    a = run / "state" / "server-a"
    if what == "empty":
        (tmp_path / "new").mkdir()
        opener(f"sqlite:///{tmp_path}/new/state.db").close()
    given, said = {
        "nothing": ((), "give a finished run's folder"),
        "folder": ((tmp_path,), "holds neither history.csv"),
        "twice": ((run, f"sqlite:///{a}/../server-a/state.db"), "give one database of each"),
        "out": ((run, "--out", tmp_path / "no" / "x.html"), "there is no such folder"),
        "empty": ((tmp_path / "new",), "no round was released yet"),
    }[what]
    done = invoke(*given)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_the_course_counts_broken_attempts_and_repeats(
    tmp_path: Path,
    opener: Opener,
    enrolled: Callable[[Store], Store],
    prepared: Prepare,
    bind: Bind,
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    store = opener(url)
    enrolled(store)
    store.attempts.begin(0, 0, 3, NEXT)
    store.attempts.abandon_open()
    prepared(store, 1)
    bind(store, 1)
    store.attempts.write_off(1)
    prepared(store, 2)
    bind(store, 2)
    store.attempts.finish(2, NEXT)
    store.close()
    course = read_training(url)
    (only,) = course.versions
    assert (course.attempts, course.most_repeats) == (3, 1)
    assert (only.attempts, only.counted, only.most_participations) == (3, 2, 1)
    assert (course.most_participations, only.rejected) == (1, {Rejection.ABSENT.value: 1})


@pytest.mark.parametrize("role", [Role.SERVER_A, Role.SERVER_B])
def test_a_charge_that_one_ledger_has_and_that_was_never_released_counts(
    run: Path, tmp_path: Path, opener: Opener, prepared: Prepare, bind: Bind, role: Role
) -> None:
    """Its share may have left: another database, put back from a copy, doesn't know of it."""
    before = facts(tmp_path / "before.json", run)
    store = opener(f"sqlite:///{run}/state/{role.value}/state.db", role=role)
    prepared(store, ROUNDS, version=ROUNDS)
    bind(store, ROUNDS, ROUNDS)
    store.close()
    after = facts(tmp_path / "after.json", run, exit_code=1)
    assert after.training.released == ROUNDS
    for old, new in zip(before.guarantees, after.guarantees, strict=True):
        assert new.participations == old.participations + 1
        assert old.epsilon is None or (new.epsilon is not None and new.epsilon > old.epsilon)
    assert after.rounds[-1].epsilon_server == pytest.approx(after.guarantees[0].epsilon)


def test_what_only_an_owner_remembers_counts(run: Path, tmp_path: Path, opener: Opener) -> None:
    """Both databases were put back, and the owner has the servers' word for two rounds more."""
    store = opener(f"sqlite:///{run}/state/server-a/state.db", role=Role.SERVER_A)
    more = ROUNDS + 2
    store.statements.keep(
        Statement(
            task_digest=store.task.digest.value,
            client="ward-a",
            version=more,
            model_digest=NEXT.value,
            attempt=more,
            charged=(more,),
            opened=more,
            counted=True,
        )
    )
    store.close()
    assert facts(tmp_path / "x.json", run).guarantees[0].participations == ROUNDS + 2
    view = read_training(f"sqlite:///{run}/state/server-a/state.db")
    assert {each.client: each.participations for each in view.clients}[
        ClientId("ward-a")
    ] == ROUNDS + 2


SMOOTHING = {
    "sigma": 0.25,
    "copies": 10_000,
    "confidence": 0.999,
    "points": 359,
    "abstained": 12,
    "average_certified_radius": 0.4321,
    "certified_accuracy": {"0.0": 0.9, "0.25": 0.74999},
}


def test_what_was_certified_of_changed_inputs_is_in_the_same_report(
    run: Path, tmp_path: Path
) -> None:
    (run / "summary.json").write_text(json.dumps({"robustness": {"smoothing": SMOOTHING}}))
    inputs = facts(tmp_path / "x.json", run).inputs
    assert inputs is not None
    assert inputs.model_dump() == SMOOTHING
    invoke(run, "--out", tmp_path / "report.html")
    seen = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    for words in ("mean radius is 0.432", "10,000 noisy copies", "359 public inputs 12", "74.9%"):
        assert words in seen
    (run / "summary.json").write_text(json.dumps({"robustness": {"smoothing": {"sigma": -1}}}))
    ended = invoke(run, "--out", tmp_path / "other.html")
    assert ended.exit_code == 2
    assert "certificates of changed inputs" in ended.output


def test_a_bound_is_rounded_away_from_what_it_bounds_and_no_protection_is_called_that() -> None:
    assert (least(0.12399), most(0.12301)) == ("12.3%", "12.4%")
    said = Guarantee(
        protects="record", against="anyone", epsilon=1.0, delta=1e-5, added_delta=0.0,
        participations=60, basis="counted", limit=None, found_of_100=21.2,
    )  # fmt: skip
    assert "at most 22 of 100" in guarantee_sentence(said)
    none = said.model_copy(update={"protects": "owner", "epsilon": 1732.0, "found_of_100": 100.0})
    assert "is not protected" in guarantee_sentence(none)


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_what_is_added_to_delta_is_all_that_the_guarantee_has_beside_it(
    validation: str,
    make_task: Any,
    tmp_path: Path,
    opener: Opener,
    enrolled: Callable[[Store], Store],
    prepared: Prepare,
    bind: Bind,
) -> None:
    """Honest rejection; and broken cryptography where a malicious server is meant."""
    task = make_task(8, {"privacy.epsilon_limit": 5.0, "validation": validation})
    store = enrolled(opener(f"sqlite:///{tmp_path}/state.db", task=task))
    prepared(store)
    bind(store)
    store.attempts.finish(0, NEXT)
    store.close()
    found = facts(tmp_path / "x.json", tmp_path).guarantees
    malicious = [each.against == MALICIOUS_SERVER for each in found]
    assert malicious == [False] * 3 + [True] * (validation == "proof")
    for each, broken in zip(found, malicious, strict=True):
        epsilon = math.inf if each.epsilon is None else each.epsilon
        # In the one round that was released.
        run = replace(Run.of(task), attempts=task.training.attempts)
        added = honest_rejection(epsilon, run)
        added += advantages(epsilon, run) if broken else 0.0
        assert each.added_delta == pytest.approx(added, rel=1e-9, abs=0)


def test_a_version_that_was_released_twice_raises_what_is_guaranteed(
    run: Path, tmp_path: Path, opener: Opener, prepared: Prepare, bind: Bind, task: Task
) -> None:
    """The report names nobody's repeats: every round is accounted as the one that has the most."""
    before = facts(tmp_path / "before.json", run)
    for role in (Role.SERVER_A, Role.SERVER_B):
        store = opener(f"sqlite:///{run}/state/{role.value}/state.db", role=role)
        for number in (ROUNDS, ROUNDS + 1):
            prepared(store, number, version=ROUNDS)
            bind(store, number, ROUNDS)
            if number == ROUNDS:
                store.attempts.write_off(number)
        store.attempts.finish(ROUNDS + 1, NEXT)
        store.close()
    after = facts(tmp_path / "after.json", run)
    assert before.guarantees[0].participations == ROUNDS
    assert after.guarantees[0].participations == ROUNDS + 1
    noise = task.privacy.noise_multiplier / math.sqrt(2)
    event = poisson_gaussian(
        rate=task.privacy.record_rate, noise_multiplier=noise, count=ROUNDS + 1
    )
    assert after.guarantees[0].epsilon == pytest.approx(spent(event, task.privacy.delta))


def test_sound_ledgers_that_differ_are_exit_1_too(
    run: Path, tmp_path: Path, opener: Opener, prepared: Prepare
) -> None:
    store = opener(f"sqlite:///{run}/state/server-b/state.db", role=Role.SERVER_B)
    prepared(store, ROUNDS, version=ROUNDS)
    store.close()
    found = facts(tmp_path / "x.json", run, exit_code=1)
    assert [ledger.findings for ledger in found.ledgers] == [[], []]
    assert found.differences
    assert found.differences[0] in invoke(run, "--out", tmp_path / "x.html").output
