"""What the demo is asked: each wrong value is named before a part starts."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from examples.demo import __main__ as program
from tests.rig.commands import refused

from precad.common.errors import Misconfiguration


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--dataset chess", "dataset = 'chess': .*digits, breast-cancer"),
        ("--attack rain", "--attack = 'rain': .*wraparound.*dropout"),
        ("--attackers 2", "--attackers.* 2.*--attack wraparound"),
        (
            "--attack garbage --attackers 10",
            "--attackers = 10: .*fewer than the 10 clients",
        ),
        ("--clients 400", "clients = 400: .*from 1 to 359"),
        ("--client-rate 0", "client_rate = 0.0: .*greater than 0"),
        ("--output full", "--output = 'full': .*isn't empty"),
    ],
)
def test_a_wrong_value_is_named_and_nothing_made(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "model").touch()
    before = sorted(tmp_path.rglob("*"))
    ended = CliRunner().invoke(program.demo, line.split())
    assert isinstance(ended.exception, Misconfiguration)
    assert re.search(said, str(ended.exception))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_error_is_one_line_with_a_wrong_values_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("open_closed_streams", "take_over_stderr", "keep_freed_buffers"):
        monkeypatch.setattr(program, name, lambda: None)
    monkeypatch.setattr("sys.argv", ["demo", "--attack", "rain"])
    with pytest.raises(SystemExit, match="2"):
        program.main()
    loading, error = capsys.readouterr().err.splitlines()
    assert "loading torch" in loading
    assert error.startswith("precad: --attack = 'rain'")


def test_every_option_explains_itself() -> None:
    told = CliRunner().invoke(program.demo, ["--help"])
    assert told.exit_code == 0
    for parameter in program.demo.params:
        assert parameter.opts[0] in told.stdout
        assert getattr(parameter, "help", None), parameter.name


def test_whoever_types_precad_demo_is_told_where_the_demo_is() -> None:
    told = refused("demo", "--rounds", "3")
    assert "`make demo`" in told
    assert "precad simulate" in told
