"""What an owner gets wrong first is found before it enrols, in a sentence each, for real."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rig.first_mistakes import MISTAKES, WAIT_S, Clinic, Mistake, can_mount, good_records

from precad.client.owner_settings import JoinSettings

DOCUMENT = Path(__file__).parents[3] / "docs" / "first-mistakes.md"


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    with Clinic(tmp_path_factory.mktemp("clinic")).running() as running:
        yield running


def test_nothing_is_wrong_with_good_settings(clinic: Clinic) -> None:
    told = clinic.tell(Mistake("none", lambda ward: ward, ""))
    assert (told.status, told.wrong) == (0, [])
    about = {each["about"] for each in told.findings}
    assert about >= {"task", "identity", "data", "model and loss", "limit", "state", "clock"}
    assert about >= {"server A", "server B"}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_each_mistake_is_said_in_a_sentence_that_names_the_remedy(
    mistake: Mistake, clinic: Clinic
) -> None:
    told = clinic.tell(mistake)
    assert told.status == 1, told
    assert any(re.search(mistake.said, said) for said in told.wrong), told.wrong
    # One mistake, and what follows from it: not a screen of them.
    assert 1 <= len(told.wrong) <= 2
    for said in told.wrong:
        assert "Traceback" not in said
        assert len(said) < 600
    if not mistake.small_disk or can_mount():
        _stands_in_the_document(mistake, told.wrong)


def test_the_sdk_finds_what_the_doctor_finds(clinic: Clinic) -> None:
    settings = JoinSettings.load(clinic.good_settings)
    owner = settings.data_owner()
    assert owner.check(WAIT_S).wrong == ()
    swapped = settings.model_copy(
        update={"server_a": settings.server_b, "server_b": settings.server_a}
    )
    x, y = good_records()
    wrong = swapped.data_owner((x[:, :63], y)).check(WAIT_S).wrong
    assert {each.about for each in wrong} == {"model and loss", "server A", "server B"}


def _stands_in_the_document(mistake: Mistake, wrong: list[str]) -> None:
    row = next(
        line
        for line in DOCUMENT.read_text(encoding="utf-8").splitlines()
        if line.startswith(f"| {mistake.name} |")
    )
    for said in wrong:
        assert _shape(said) in _shape(row), row


def _shape(text: str) -> str:
    """Without numbers, which differ from run to run and from one version of torch to the next."""
    return re.sub(r"[\d.:…]+|[0-9a-f]{8}…", "#", text.replace("\\|", "|"))
