"""`precad enrol` as an operator uses it."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.rig.commands import precad

from precad.aggregator.enrol.admission import ByToken
from precad.common.errors import AccessDenied
from precad.common.identifiers import ClientId

ONE, TWO = ClientId("ward-1"), ClientId("ward-2")


run = partial(precad, "enrol")


def test_a_token_made_for_both_servers_works_at_both(tmp_path: Path) -> None:
    result = run("token", "--state", tmp_path / "a", "--state", tmp_path / "b")
    assert result.exit_code == 0
    token, _, _ = result.stdout.split()
    for server in ("a", "b"):
        book = ByToken(tmp_path / server)
        book.redeem(token, ONE)
        with pytest.raises(AccessDenied):
            book.redeem(token, TWO)


def test_the_other_operator_needs_the_digest_alone_which_a_pipe_gets_too(tmp_path: Path) -> None:
    """On stderr it was lost in a pipe."""
    token, word, digest = run("token", "--state", tmp_path / "a").stdout.split()
    assert (word, [*ByToken(tmp_path / "a").owners()]) == ("digest", [digest])
    result = run("token", "--state", tmp_path / "b", "--digest", digest, "--json")
    assert json.loads(result.stdout) == {"tokens": [], "digests": [digest]}
    assert run("token", "--state", tmp_path / "c", "--digest", digest).stdout.split()[1] == digest
    for server in ("b", "c"):
        ByToken(tmp_path / server).redeem(token, ONE)


def test_a_token_made_for_a_client_is_that_clients_at_both_servers(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    token, _, digest = run("token", "--state", a, "--client", "ward-1").stdout.split()
    assert run("token", "--state", b, "--client", "ward-1", "--digest", digest).exit_code == 0
    for server in (a, b):
        assert [*ByToken(server).owners().values()] == ["ward-1"]
        with pytest.raises(AccessDenied):
            ByToken(server).redeem(token, TWO)
        ByToken(server).redeem(token, ONE)


def test_each_named_client_gets_a_token_of_its_own_and_of_many_no_two_are_alike(
    tmp_path: Path,
) -> None:
    run("token", "--state", tmp_path / "named", "--client", "ward-1", "--client", "ward-2")
    assert set(ByToken(tmp_path / "named").owners().values()) == {"ward-1", "ward-2"}
    made = json.loads(run("token", "--state", tmp_path, "--count", "5", "--json").stdout)
    assert len(set(made["tokens"])) == len(ByToken(tmp_path).owners()) == 5


def test_show_names_users_and_no_token(tmp_path: Path) -> None:
    made = run("token", "--state", tmp_path, "--count", "2").stdout.splitlines()
    used, unused = (line.split(" ")[0] for line in made)
    ByToken(tmp_path).redeem(used, ONE)
    text = run("show", "--state", tmp_path).stdout
    listing = json.loads(run("show", "--state", tmp_path, "--json").stdout)
    assert sorted(str(each["client"]) for each in listing[str(tmp_path)]) == ["None", "ward-1"]
    for words, there in (("ward-1", True), ("unused", True), (used, False), (unused, False)):
        assert (words in text) is there


@pytest.mark.parametrize(
    "arguments",
    [
        ["--digest", "xyz"],
        ["--digest", "00"],
        ["--digest", "0" * 64, "--count", "2"],
        ["--client", "ward-1", "--count", "2"],
        ["--client", "ward-1", "--client", "ward-2", "--digest", "0" * 64],
        ["--client", "Ward 1"],
    ],
)
def test_a_wrong_value_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    result = run("token", "--state", tmp_path, *arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert ByToken(tmp_path).owners() == {}
