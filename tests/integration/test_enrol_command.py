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


def token(state: Path, *more: str) -> list[str]:
    """What the command prints, in words: the token, `digest` and its digest."""
    result = run("token", "--state", state, *more)
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def redeemed(state: Path, made: str) -> None:
    """It is the first client's, and nobody else's."""
    ByToken(state).redeem(made, ONE)
    with pytest.raises(AccessDenied):
        ByToken(state).redeem(made, TWO)


def test_a_token_works_at_both_servers_of_which_one_needs_its_digest_alone(tmp_path: Path) -> None:
    """Which a pipe gets too: on stderr it was lost in one."""
    a, b, c, d = (tmp_path / name for name in "abcd")
    made, word, digest = token(a, "--state", str(b))
    assert (word, [*ByToken(a).owners()]) == ("digest", [digest])
    answer = json.loads(" ".join(token(c, "--digest", digest, "--json")))
    assert answer == {"tokens": [], "digests": [digest]}
    assert token(d, "--digest", digest)[1] == digest
    for server in (a, b, c, d):
        redeemed(server, made)


def test_a_token_made_for_a_client_is_that_clients_at_both_servers(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made, _, digest = token(a, "--client", "ward-1")
    token(b, "--client", "ward-1", "--digest", digest)
    for server in (a, b):
        assert [*ByToken(server).owners().values()] == ["ward-1"]
        with pytest.raises(AccessDenied):
            ByToken(server).redeem(made, TWO)
        redeemed(server, made)
    # Each named client gets one of its own, and of many no two are alike.
    token(tmp_path / "named", "--client", "ward-1", "--client", "ward-2")
    assert {*ByToken(tmp_path / "named").owners().values()} == {"ward-1", "ward-2"}
    many = json.loads(" ".join(token(tmp_path, "--count", "5", "--json")))["tokens"]
    assert len({*many}) == len(ByToken(tmp_path).owners()) == 5


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
        "--digest xyz",
        "--digest 00",
        f"--digest {'0' * 64} --count 2",
        "--client ward-1 --count 2",
        f"--client ward-1 --client ward-2 --digest {'0' * 64}",
        "--client WARD-1",
    ],
)
def test_a_wrong_value_is_a_usage_error(tmp_path: Path, arguments: str) -> None:
    result = run("token", "--state", tmp_path, *arguments.split())
    assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert ByToken(tmp_path).owners() == {}
