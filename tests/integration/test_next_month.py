"""A second training on the first one's model: where its owners' accounts are, and whom
it waits for.
"""

import shutil
from pathlib import Path

import pytest
from tests.rig.commands import precad, refused, said
from tests.rig.tasks import RECIPE

from precad.client.account_file import ACCOUNT_FILE
from precad.client.check_before_enrolling import look_at_earlier_task
from precad.client.own_account import OwnAccount
from precad.client.owner_settings import JoinSettings
from precad.client.server_statements import MODELS
from precad.common.identifiers import ClientId
from precad.common.model import initial_vector, save_model
from precad.common.task import Task

OWNERS = ("alpha", "beta")
RECORDS = ("--recipe", "columns.toml", "--records", "2x40", "--epsilon", "3")
NEW = (*RECORDS, "--architecture", "logistic")
FILES = [word for name in OWNERS for word in ("--data", f"{name}.csv")]


def setup(run: str, task: str, *more: str) -> str:
    """What stderr says, on one line."""
    done = precad("setup", run, "--task", task, *FILES, *more)
    assert done.exit_code == 0, done.stderr
    return " ".join(done.stderr.split())


@pytest.fixture
def months(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """November's run, and December's task, which goes on with its model."""
    monkeypatch.chdir(tmp_path)
    Path("columns.toml").write_text(RECIPE)
    for name in OWNERS:
        Path(f"{name}.csv").write_text("age,ward,died\n" + "70,A,yes\n50,B,no\n" * 20)
    said("task", "new", "november.toml", *NEW)
    assert setup("nov", "november.toml") == ""
    november = Task.load(Path("november.toml"))
    save_model(Path("model.safetensors"), november, 200, initial_vector(november.model))
    made = precad(
        "task", "new", "december.toml", *NEW, "--continue", "model.safetensors"
    )
    # How both stand in one account is said where the task is made.
    assert "precad setup --accounts" in made.stderr
    return tmp_path


def test_setup_goes_on_with_an_earlier_runs_accounts_or_says_that_they_begin_anew(
    months: Path,
) -> None:
    """Two trainings of the same records stood in two accounts, and nothing said so."""
    told = setup("apart", "december.toml")
    for words in ("for alpha, beta", "--accounts RUN", 'account = "…"'):
        assert words in told
    assert JoinSettings.load(months / "apart" / "alpha.toml").account is None
    assert setup("dec", "december.toml", "--accounts", "nov") == ""
    december = JoinSettings.load(months / "dec" / "alpha.toml")
    assert december.account is not None
    assert december.account.resolve() == months / "nov" / "state" / "alpha"
    assert december.state.resolve() == months / "dec" / "state" / "alpha"
    # In January it is still November's.
    assert setup("jan", "december.toml", "--accounts", "dec") == ""
    january = JoinSettings.load(months / "jan" / "alpha.toml")
    assert january.account is not None
    assert january.account.resolve() == december.account.resolve()
    # Who wasn't there.
    (months / "dec" / "beta.toml").unlink()
    told = setup("feb", "december.toml", "--accounts", "dec")
    assert ("for beta:" in told, "alpha" in told) == (True, False)
    assert "name its file as then" in told


@pytest.mark.usefixtures("months")
def test_accounts_of_other_names_or_of_no_run_are_refused_and_nothing_is_made() -> None:
    """New accounts began, and the advice was to give what had been given."""
    for folder in (".", "nov/state"):
        new = ("setup", "mar", "--task", "december.toml", *FILES, "--accounts", folder)
        assert "has no settings of alpha, beta" in refused(*new)
    renamed = []
    for name in OWNERS:
        shutil.copy(f"{name}.csv", f"{name}-december.csv")
        renamed += ["--data", f"{name}-december.csv"]
    new = ("setup", "mar", "--task", "december.toml", *renamed, "--accounts", "nov")
    assert "alpha-december, beta-december: give the folder" in refused(*new)
    assert not Path("mar").exists()


def test_an_account_without_the_task_whose_model_goes_on_is_asked_about(
    months: Path,
) -> None:
    november, december = (
        Task.load(months / f"{name}.toml") for name in ("november", "december")
    )
    file = months / ACCOUNT_FILE
    alpha = ClientId("alpha")
    rate = december.privacy.record_rate

    def asked(task: Task) -> list[str]:
        account = OwnAccount(task, rate, None, file, alpha)
        return [finding.text for finding in look_at_earlier_task(task, account)]

    (text,) = asked(december)
    for words in ("model of task november", 'account = "…"', "don't add up"):
        assert words in text
    OwnAccount(november, rate, None, file, alpha).charge(0)
    assert asked(december) == asked(november) == []
    # The doctor says it, whatever else it finds.
    setup("apart", "december.toml")
    told = precad("doctor", "--wait", "0", "--config", "apart/alpha.toml").stdout
    assert "model of task november" in told
    setup("dec", "december.toml", "--accounts", "nov")
    account = months / "nov" / "state" / "alpha"
    account.mkdir(parents=True)
    shutil.move(file, account / ACCOUNT_FILE)
    told = precad("doctor", "--wait", "0", "--config", "dec/alpha.toml").stdout
    assert "model of task november" not in told


@pytest.mark.usefixtures("months")
def test_a_copy_of_other_weights_beside_the_task_is_named() -> None:
    new = ("task", "new", "here/again.toml", *NEW, "--continue", "model.safetensors")
    Path("here").mkdir()
    assert "here/model.safetensors: the weights" in said(*new)
    Path("here/again.toml").unlink()
    # The same ones are no hindrance.
    said(*new)
    Path("here/again.toml").unlink()
    Path("here/model.safetensors").write_bytes(b"others")
    told = refused(*new)
    assert "here/model.safetensors is another file" in told
    assert "another folder, or rename" in told


@pytest.mark.usefixtures("months")
def test_the_same_task_on_an_account_that_it_has_charged_is_refused_with_the_way_on(
    tmp_path: Path,
) -> None:
    """Each round that the account holds was sat out, at a minute a round."""
    november = Task.load(tmp_path / "november.toml")
    folder = tmp_path / "nov" / "state" / "alpha"
    folder.mkdir(parents=True)
    file = folder / ACCOUNT_FILE
    rate = november.privacy.record_rate
    OwnAccount(november, rate, None, file, ClientId("alpha")).charge(0)
    again = ("setup", "again", "--task", "november.toml", *FILES, "--accounts", "nov")
    told = refused(*again)
    assert "alpha" in told
    assert "beta" not in told
    for words in ("--config nov/alpha.toml", "precad task new", "another name"):
        assert words in told
    assert not Path("again").exists()
    # Another task goes on there, whatever this one has charged.
    assert setup("dec", "december.toml", "--accounts", "nov") == ""
    # The doctor says it of settings that somebody wrote: there's a state of its own.
    shutil.copy("nov/alpha.toml", "nov/copy.toml")
    text = Path("nov/copy.toml").read_text()
    other = text.replace('"state/alpha"', '"state/new"') + 'account = "state/alpha"\n'
    Path("nov/copy.toml").write_text(other)
    doctor = ("doctor", "--wait", "0", "--config")
    sat_out = "would be sat out"
    assert sat_out in " ".join(precad(*doctor, "nov/copy.toml").stdout.split())
    assert sat_out not in precad(*doctor, "dec/alpha.toml").stdout
    # Where the training was, it goes on.
    (folder / MODELS).write_text(f"{november.digest} 0 {november.digest}\n")
    assert sat_out not in precad(*doctor, "nov/alpha.toml").stdout


@pytest.mark.usefixtures("months")
def test_records_with_an_account_in_the_next_folder_are_said_to_have_one() -> None:
    """A second task on the same records began a second account without a word."""
    known = "the same records"
    other = Path("other")
    other.mkdir()
    for name in OWNERS:
        shutil.copy(f"{name}.csv", other / f"{name}.csv")
    said("task", "new", "spring.toml", *NEW, "--name", "spring")
    told = setup("spring", "spring.toml")
    for words in (known, "in nov", "--accounts nov", "its own part"):
        assert words in told
    assert setup("summer", "spring.toml", "--accounts", "nov") == ""
    # Files of the same names are other records, and what can't be read is no hindrance.
    elsewhere = [word for name in OWNERS for word in ("--data", f"other/{name}.csv")]
    shutil.rmtree("summer")
    Path("spring/alpha.toml").write_text("client = 3")
    told = precad("setup", "autumn", "--task", "spring.toml", *elsewhere).stderr
    assert known not in told
    told = precad("setup", "winter", "--task", "spring.toml", *FILES).stderr
    assert "in nov" in told


def test_setup_says_whom_a_task_waits_for_and_until_when(
    months: Path,
) -> None:
    """Two of three owners were enrolled, and nothing came for an hour."""
    three = (*NEW[:3], "3x40", *NEW[4:])
    said("task", "new", "three.toml", *three)
    told = setup("three", "three.toml")
    for words in ("for 3 owners, and here are 2", "60 min", "enrol_quorum = 2"):
        assert words in told
    assert (months / "three" / "alpha.toml").is_file()
