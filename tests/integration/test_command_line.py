"""`precad` as a person meets it: help that teaches, refusals that say what to do and
repeat no secret; `precad setup`, `enrol` and `health` as operators use them; processes
that are split off from one that has imported everything.

Logs of real parts are searched in integration/deployment; what setup makes trains in
soak.
"""

import json
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click
import grpc.aio
import numpy as np
import pytest
from examples.demo.local_processes import environment_of_parts
from tests.rig import commands, stops, waiting, warm
from tests.rig.commands import precad, python
from tests.rig.connections import Refusing
from tests.rig.documents import Document
from tests.rig.loop import LoopThread
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import logistic, task_with
from tests.rig.warm import said as told

from precad.aggregator.enrol.admission import ByToken
from precad.aggregator.settings import ServerASettings, ServerBSettings
from precad.cli import forked as forking
from precad.cli.local_deployment import free_addresses, to_toml
from precad.cli.main import COMMANDS, app
from precad.client.owner_settings import JoinSettings
from precad.common import errors, identifiers
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import create_local_keys
from precad.common.wire.serving import add_health

ADDRESS = "127.0.0.1:1"


def refused(*arguments: object) -> str:
    """What stderr says, on one line of ours, after a refusal with status 2."""
    told = commands.refused(*arguments)
    lines = [line for line in told.splitlines() if line.startswith("precad: ")]
    assert (len(lines), "Traceback" in told) == (1, False), told
    return lines[0]


def inner(command: click.Command, name: str) -> click.Command:
    """A group may load what its names stand for only when asked."""
    assert isinstance(command, click.Group)
    found = command.get_command(click.Context(command), name)
    assert found is not None
    return found


def every(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from every(inner(command, name), (*path, name))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    task = task_with({"enrolment.clients": 2, "enrolment.min_clients": 2})
    (tmp_path / "task.toml").write_text(task_to_toml(task), encoding="utf-8")
    for name in ("Ward_1.csv", "ward-2.csv"):
        (tmp_path / name).write_text("a,y\n1,0\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


ALL = list(every(app))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_explains_itself_and_each_of_its_options(
    path: tuple[str, ...],
) -> None:
    result = precad(*path, "--help")
    assert result.exit_code == 0
    command: click.Command = app
    for name in path:
        command = inner(command, name)
    assert len((command.help or "").split()) >= 4
    for parameter in command.params:
        if isinstance(parameter, click.Option) and "--help" not in parameter.opts:
            assert parameter.help, parameter.name
    named = [path[-1] for path in every(command) if len(path) == 1]
    assert [name for name in named if name not in result.stdout] == []


def test_help_shows_a_settings_file_and_an_option_that_cannot_be_is_named() -> None:
    for command, needed in (
        ("serve", {"server_b", "dealer", "state"}),
        ("join", {"client"}),
    ):
        text = precad(command, "--help").stdout
        lines = [line.strip() for line in text.splitlines() if " = " in line]
        shown = tomllib.loads("\n".join(lines))
        assert needed | {"task", "identity"} <= set(shown)
    # No command shows the help.
    for group in ("", "serve", "keys"):
        result = precad(*group.split())
        assert (result.exit_code, "Usage:" in result.output) == (2, True)
    for line, option in (
        ("account --rounds many", "--rounds"),
        ("plan --nonsense", "--nonsense"),
        ("serve a", "--config"),
        ("status", "ADDRESS"),
        (f"status {ADDRESS} --server c --identity keys", "--server"),
    ):
        told = commands.refused(*line.split())
        assert (option in told, "--help" in told) == (True, True), told


def test_an_option_given_twice_is_refused_and_one_that_repeats_is_taken() -> None:
    twice = ["--records", "320", "--records", "200", "--owners", "3"]
    assert "--records is given 2 times: give it once" in commands.refused(
        "task", "new", "never.toml", *twice
    )
    assert not Path("never.toml").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("certify loss full --plot full/x.gif", "--plot = 'full/x.gif': .*ends with"),
        ("report full", "RUN = 'full': holds neither"),
        (
            "status nowhere --identity full/operator",
            "address = 'nowhere': give host:port",
        ),
    ],
)
def test_a_wrong_value_is_named_and_nothing_made(
    line: str, said: str, place: Path
) -> None:
    create_local_keys(place / "full", [])
    before = sorted(place.rglob("*"))
    assert re.search(said, refused(*line.split()))
    assert sorted(place.rglob("*")) == before


BOTH: Document = {"task": "task.toml", "identity": "keys"}
SERVER = {"listen": ADDRESS, "dealer": ADDRESS, "state": "state"}
OWNER = {"client": "ward-3", "server_a": ADDRESS, "server_b": ADDRESS, "data": "x.npz"}
PARTS = {
    "serve a": BOTH | SERVER | {"server_b": ADDRESS},
    "serve b": BOTH | SERVER,
    "serve dealer": BOTH | {"listen": ADDRESS},
    "join": BOTH | OWNER | {"state": "state"},
}
"""Settings of each part, all well but for a task file that isn't there."""


@pytest.mark.parametrize("part", PARTS)
def test_a_broken_settings_file_is_named_with_what_is_wrong(
    part: str, tmp_path: Path
) -> None:
    config, good = tmp_path / "settings.toml", PARTS[part]
    address = "server_a" if part == "join" else "listen"

    def error(text: dict[str, object] | bytes) -> str:
        config.write_bytes(text if isinstance(text, bytes) else to_toml(text).encode())
        return refused(*part.split(), "--config", config)

    def without(field: str) -> dict[str, object]:
        return {key: value for key, value in good.items() if key != field}

    assert f"config = '{config}': can't be read" in refused(
        *part.split(), "--config", config
    )
    assert "at line 1" in error(b'task = "unfinished\n')
    assert f"config = '{config}': isn't UTF-8 text: save it as UTF-8" in error(
        b"\xff\xfe"
    )
    assert f"lisen = 3: unknown key in {config}: " in error(good | {"lisen": 3})
    # Perhaps it is another part's file, and nothing in it wants mending.
    assert "if these are another part's settings, name the right file" in error(
        good | {"lisen": 3}
    )
    assert "if these are another part's settings" in error(without(address))
    for required in (address, "identity"):
        assert f"{required} = None: is required in {config}" in error(without(required))
    assert f"{address} = '7301': give host:port" in error(good | {address: "7301"})
    # All well but for a file that is named there: looked for beside the settings file.
    assert f"task = '{tmp_path / 'task.toml'}': can't be read" in error(good)
    (tmp_path / "task.toml").write_text('name = "x"\ncolour = "red"\n')
    assert "is required" in error(good)
    (tmp_path / "task.toml").write_text(task_to_toml(task_with({})))
    if part != "join":
        there = (
            f"identity = '{tmp_path / 'keys' / 'ca.pem'}': can't be read (No such file"
        )
        assert there in error(good)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_output_that_can_t_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    task = tmp_path / "task.toml"
    task.write_text(task_to_toml(task_with({})))
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "precad", "task", "show", str(task)],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment_of_parts(),
        )
    assert done.returncode == 1
    assert done.stderr.startswith("precad: the output can't be written: No space")
    assert done.stderr.count("\n") == 1


CLOSED = """
import os, sys
os.close(2)
os.execv(sys.executable, [sys.executable, "-m", "precad", *sys.argv[1:]])
"""


def test_without_standard_error_a_command_runs_and_its_files_are_no_streams(
    tmp_path: Path,
) -> None:
    """As some schedulers start programs."""
    task = tmp_path / "task.toml"
    task.write_text(task_to_toml(task_with({})))
    done = python("-c", CLOSED, "task", "show", task)
    assert done.returncode == 0
    assert "digest" in done.stdout
    config = tmp_path / "settings.toml"
    config.write_text("lisen = 3\n")
    assert python("-c", CLOSED, "join", "--config", config).returncode == 2


PLANTED = "xplantedx"
HOST = "127.0.0.1"
PROXY = f"http://u:{PLANTED}@{HOST}:1"
DATABASES = (
    f"postgresql://precad:{PLANTED}@{HOST}:bad/precad",
    f"postgresql://precad:{PLANTED}@{HOST}:99999/precad",
    f"postgresql://precad:x@{PLANTED}@{HOST}/precad",
    f"postgresql://precad:{PLANTED}@{HOST}:1/precad",
    f"postgresql://{HOST}:1/precad?user=precad&password={PLANTED}",
    f"postgresql://precad:{PLANTED}@{HOST}:1/precad?connect_timeout=never",
    f"mysql://precad:{PLANTED}@{HOST}/precad",
    f"postgres:/precad:{PLANTED}@{HOST}/precad",
)


ONE, *_ = DATABASES
OWN = PARTS["join"] | {"identity": "keys/ward-3"}
B = PARTS["serve b"] | {"identity": "keys/server-b", "listen": f"{HOST}:0"}
OWNERS: list[Document] = [
    OWN | {"token": PLANTED},
    OWN | {"token": [PLANTED]},
    OWN | {"tokne": PLANTED},
    OWN | {"token": PLANTED, "proxy": PROXY},
    OWN | {"proxy": f"http://u:{PLANTED}@{HOST}"},
    OWN | {"proxy": f"https://u:{PLANTED}@{HOST}:1"},
    OWN | {"server_a": PROXY},
]
OPERATOR = "--identity keys/operator"
LINES: dict[str, list[str | tuple[str, Document]]] = {
    "simulate": [ONE],
    "plan": [f"--task {ONE}"],
    "task": [f"show {ONE}"],
    "account": [f"--task {ONE}"],
    "ask": [f"new {ONE}", f"check {ONE}", ("answer --config", OWNERS[0])],
    "certify": [f"model {ONE}"],
    "keys": [
        "show keys",
        "show keys/ward-3/key.pem",
        "issue keys client ward-3",
        f"show {ONE}",
    ],
    "enrol": [f"token --state state --digest {PLANTED}", "show --state state"],
    "setup": [f"run --task {ONE} --data {DATABASES[1]}"],
    "serve": [
        # Those that nobody tries to reach.
        *(
            ("b --config", B | {"database": each})
            for each in (*DATABASES[:3], *DATABASES[5:])
        ),
        ("b --config", B | {"databse": DATABASES[3]}),
        ("b --config", B | {"dealer": PROXY}),
        ("b --config", B | {"database": [PLANTED]}),
        ("b --config", B | {"proxy": f"http://u:{PLANTED}@:1"}),
    ],
    "doctor": [("--wait 1 --config", each) for each in OWNERS],
    "join": [("--config", each) for each in OWNERS],
    "predict": [f"--model {ONE} {ONE}"],
    "evaluate": [f"--model {ONE} {ONE}"],
    "status": [
        f"{HOST}:1 {OPERATOR} --proxy http://u:{PLANTED}@{HOST}",
        f"{HOST}:1 {OPERATOR} --proxy {PROXY}",
        f"{PROXY} {OPERATOR}",
        f"{HOST}:1 {PROXY} {OPERATOR}",
    ],
    "health": [("--config", B | {"database": ONE})],
    "allow": [f"coin {PROXY} --version 1 {OPERATOR}"],
    "ledger": [
        *(f"show {each}" for each in DATABASES),
        *(f"verify {each} --against {each}" for each in DATABASES),
        *(f"show state {ONE}", f"mine {ONE}"),
    ],
    "backup": [
        *(f"{each} copy" for each in DATABASES),
        *(f"check {each}" for each in DATABASES),
    ],
    "kit": [f"client ward-3 --consortium {ONE}"],
    "report": [*DATABASES],
}
"""With the settings that a file of them has."""


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_and_no_log_repeats_a_secret(
    command: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    Path("task.toml").write_text(task_to_toml(task_with({})), encoding="utf-8")
    create_local_keys(tmp_path / "keys", ["ward-3"])
    bodies = [
        path.read_text("utf-8").splitlines()[1] for path in tmp_path.rglob("key.pem")
    ]
    coins = [path.read_bytes().hex() for path in tmp_path.rglob("coin.key")]
    assert min(len(bodies), len(coins)) > 0
    for line in LINES[command]:
        words, settings = (line, None) if isinstance(line, str) else line
        if settings is not None:
            Path("settings.toml").write_text(to_toml(settings), encoding="utf-8")
            words += " settings.toml"
        ended = precad(command, *words.split())
        output = ended.output + caplog.text
        for secret in (PLANTED, *bodies, *coins):
            assert secret not in output, (ended, output)
        # One line for a person, and no traceback.
        assert isinstance(ended.exception, SystemExit | None), (output, ended.exception)


SETUP = ("setup", "run", "--task", "task.toml")
DATA = ("--data", "Ward_1.csv", "--data", "ward-2.csv")


def test_every_party_gets_settings_that_load_and_keys_of_its_own(place: Path) -> None:
    made = precad(*SETUP, *DATA, "--model", "nets:Net")
    assert made.exit_code == 0, made.stderr
    a = ServerASettings.load(place / "run" / "server-a.toml")
    b = ServerBSettings.load(place / "run" / "server-b.toml")
    assert a.server_b == b.listen
    for name, file in (("ward-1", "Ward_1.csv"), ("ward-2", "ward-2.csv")):
        owner = JoinSettings.load(place / "run" / f"{name}.toml")
        assert (owner.client, owner.model, owner.data.resolve()) == (
            name,
            "nets:Net",
            place / file,
        )
        assert (owner.server_a, owner.server_b) == (a.listen, b.listen)
        assert Identity.load(owner.identity).principal.name == name
        # A token goes into the settings.
        for private in (owner.identity / "key.pem", place / "run" / f"{name}.toml"):
            assert stat.S_IMODE(private.stat().st_mode) == 0o600
    # What it says to run next is there.
    named = re.findall(r"--config (\S+)", made.stdout)
    assert len(named) == 6
    assert all((place / each).is_file() for each in named)


def test_a_mistake_makes_nothing(place: Path) -> None:
    for files, remedy in (
        (["ward-2.csv"], "the task takes 2 to 2 owners"),
        (["ward-2.csv", "ward-2.csv"], "a name of its own"),
        (["ward-2.csv", "ward-3.csv"], "there is no such file"),
    ):
        told = commands.refused(
            *SETUP, *(word for file in files for word in ("--data", file))
        )
        assert (remedy in told, (place / "run").exists()) == (True, False)
    # Nor of records that a task can't read, which owners would be told of as they join.
    recipe: Document = {
        "data.target": {"name": "died", "kind": "categorical", "levels": ["no", "yes"]},
        "data.columns": [{"name": "age"}],
    }
    owners = {"enrolment.clients": 2, "enrolment.min_clients": 2}
    task = task_with(logistic(1, 2) | owners | recipe)
    (place / "task.toml").write_text(task_to_toml(task))
    (place / "good.csv").write_text("age,died\n1,no\n2,yes\n")
    np.savez(place / "inputs.npz", x=np.zeros((2, 1), np.float32))
    for name, table, remedy in (
        ("odd.csv", "age,died\n1,maybe\n", "none of the task's levels (no, yes)"),
        ("inputs.npz", "", "has no array y"),
    ):
        if table:
            (place / name).write_text(table)
        told = commands.refused(*SETUP, "--data", "good.csv", "--data", name)
        assert (remedy in told, (place / "run").exists()) == (True, False)
    # Nor is a folder written to that is there.
    (place / "run").mkdir()
    assert "exists already" in commands.refused(*SETUP, *DATA)


WARD_1, WARD_2 = identifiers.ClientId("ward-1"), identifiers.ClientId("ward-2")
enrol = partial(precad, "enrol")


def token(state: Path, *more: str) -> list[str]:
    """What the command prints, in words: the token, `digest` and its digest."""
    result = enrol("token", "--state", state, *more)
    assert result.exit_code == 0, result.output
    return result.stdout.split()


def redeemed(state: Path, made: str) -> None:
    ByToken(state).redeem(made, WARD_1)
    with pytest.raises(errors.AccessDenied):
        ByToken(state).redeem(made, WARD_2)


def test_a_token_works_at_both_servers_of_which_one_needs_its_digest_alone(
    tmp_path: Path,
) -> None:
    """Which a pipe gets too: on stderr it was lost in one."""
    a, b, c, d = (tmp_path / name for name in "abcd")
    made, word, digest = token(a, "--state", str(b))
    assert (word, [*ByToken(a).owners()]) == ("digest", [digest])
    answer = json.loads(" ".join(token(c, "--digest", digest, "--json")))
    assert answer == {"tokens": [], "digests": [digest]}
    assert token(d, "--digest", digest)[1] == digest
    for server in (a, b, c, d):
        redeemed(server, made)


def test_a_token_made_for_a_client_is_that_clients_at_both_servers(
    tmp_path: Path,
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    made, _, digest = token(a, "--client", "ward-1")
    token(b, "--client", "ward-1", "--digest", digest)
    for server in (a, b):
        assert [*ByToken(server).owners().values()] == ["ward-1"]
        with pytest.raises(errors.AccessDenied):
            ByToken(server).redeem(made, WARD_2)
        redeemed(server, made)
    # Each named client gets one of its own, and of many no two are alike.
    token(tmp_path / "named", "--client", "ward-1", "--client", "ward-2")
    assert {*ByToken(tmp_path / "named").owners().values()} == {"ward-1", "ward-2"}
    many = json.loads(" ".join(token(tmp_path, "--count", "5", "--json")))["tokens"]
    assert len({*many}) == len(ByToken(tmp_path).owners()) == 5


def test_show_names_users_and_no_token(tmp_path: Path) -> None:
    made = enrol("token", "--state", tmp_path, "--count", "2").stdout.splitlines()
    used, unused = (line.split(" ")[0] for line in made)
    ByToken(tmp_path).redeem(used, WARD_1)
    text = enrol("show", "--state", tmp_path).stdout
    listing = json.loads(enrol("show", "--state", tmp_path, "--json").stdout)
    assert sorted(str(each["client"]) for each in listing[str(tmp_path)]) == [
        "None",
        "ward-1",
    ]
    for words, there in (
        ("ward-1", True),
        ("unused", True),
        (used, False),
        (unused, False),
    ):
        assert (words in text) is there
    # A wrong value is a usage error.
    for wrong in (
        *(
            "--digest xyz",
            "--digest 00",
            f"--digest {'0' * 64} --count 2",
            "--client WARD-1",
        ),
        *(
            "--client ward-1 --count 2",
            f"--client ward-1 --client ward-2 --digest {'0' * 64}",
        ),
    ):
        result = enrol("token", "--state", tmp_path / "none", *wrong.split())
        assert (result.exit_code, "Traceback" in result.output) == (2, False)
    assert ByToken(tmp_path / "none").owners() == {}


def test_a_part_that_serves_ends_the_check_with_0_and_any_other_with_1(
    tmp_path: Path,
) -> None:
    create_local_keys(tmp_path / "keys", [])
    identity, config = (
        Identity.load(tmp_path / "keys" / "dealer"),
        tmp_path / "settings.toml",
    )
    serves = [True]

    def make() -> grpc.aio.Server:
        """A dealer that does nothing but answer how it is."""
        server = grpc.aio.server()
        add_health(server, identity, lambda: serves[0])
        return server

    def health(listen: str, wait_s: float = 60.0) -> tuple[int, str]:
        config.write_text(f'listen = "{listen}"\nidentity = "keys/dealer"\n')
        done = precad("health", "--config", config, "--wait", wait_s)
        return done.exit_code, done.stdout or done.stderr

    with LoopThread() as loop:
        address = loop.serve(make, identity)
        with Refusing(address, first=2) as refusing:
            # On a busy machine a first connection may break off: it is asked again.
            everywhere = address.replace("127.0.0.1", "0.0.0.0")
            for listen in (refusing.address, address, everywhere):
                assert health(listen) == (0, "dealer: serving\n")
        serves[0] = False
        assert health(address) == (1, "dealer: not serving\n")
    code, said = health("127.0.0.1:9", 1.0)
    assert (code, "dealer at 127.0.0.1:9 can't be" in said) == (1, True)
    config.write_text('identity = "keys"\n')
    assert "listen = None: is required in" in commands.refused(
        "health", "--config", config
    )


def start(log: Path, *arguments: str, **environment: str) -> forking.Process:
    with log.open("ab") as file:
        return warm.forked(
            [sys.executable, "-m", *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment_of_parts() | environment,
        )


def test_output_and_status_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process's, also when it is killed."""
    process = start(tmp_path / "log", "precad", "no-such-command")
    assert isinstance(process, forking.Forked)
    assert process.wait(60) == 2
    assert "no-such-command" in (tmp_path / "log").read_text()
    # Who has ended can't be signalled, and nobody minds.
    process.terminate()
    process = start(tmp_path / "log", "http.server", "--bind", "127.0.0.1", "0")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    # What is read when Python starts needs a start.
    other = start(tmp_path / "log", "precad", "--version", PYTHONWARNINGS="ignore")
    assert isinstance(other, subprocess.Popen)
    assert other.wait() == 0
    # A system that can't split processes says so.
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(forking, "_early_of_server", {})
    with pytest.raises(errors.Misconfiguration, match="one by one"):
        forking.begin(os.environ)


LEADER = """
import os, pathlib, signal, subprocess, sys
from precad.cli import forked
from tests.rig.waiting import until
log = pathlib.Path(sys.argv[1])
forked.begin(os.environ, ())
with log.open("ab") as file:
    part = forked.start(
        [sys.executable, "-m", "timeit", "-n1", "-r1",
         "print('here', flush=True); " + PAUSE],
        stdout=file, stderr=subprocess.STDOUT, env=os.environ,
    )
until(lambda: log.read_text(), "the part")
print(part.pid, flush=True)
if sys.argv[2] == "group":
    os.killpg(0, signal.SIGTERM)
else:
    os.kill(os.getpid(), signal.SIGKILL)
signal.pause()
""".replace("PAUSE", repr("import signal; signal.pause()"))


def test_no_two_deployments_get_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose first parts may not listen yet when the second asks."""
    (first,) = free_addresses(1)
    again = int(first.rpartition(":")[2]) - 10_000
    drawn = iter([again, (again + 1) % 22_000, (again + 2) % 22_000])
    monkeypatch.setattr("secrets.randbelow", lambda _: next(drawn))
    assert free_addresses(1) != [first]


@pytest.mark.parametrize(
    ("whom", "number"), [("alone", signal.SIGKILL), ("group", signal.SIGTERM)]
)
def test_whoever_starts_parts_leaves_none_behind(
    tmp_path: Path, whom: str, number: int
) -> None:
    """As `timeout 100 make demo` ends a group."""
    done = python("-c", LEADER, tmp_path / "log", whom, start_new_session=True)
    assert done.returncode == -number, done.stderr
    waiting.until(lambda: not stops.runs(int(done.stdout)), "the end of the part")


def test_the_status_is_that_of_an_owner_that_failed_and_each_has_its_log(
    tmp_path: Path,
) -> None:
    configs = [tmp_path / f"{name}.toml" for name in ("one", "two")]
    for config in configs:
        config.write_text("client = 3")
    arguments = [part for config in configs for part in ("--config", config)]
    status, shown = told(tmp_path, "join", "--logs", tmp_path, *arguments)
    assert status == 2
    for config in configs:
        log = config.with_suffix(".log")
        # At the end, where its own lines may be days above.
        assert re.search(rf"{config} ended with 2: see {log}", shown)
        assert f"required in {config}" in log.read_text()
        # Refusals quote cells, and accounts stand there: nobody else's to read.
        assert log.stat().st_mode & 0o777 == 0o600
    log.unlink()
    log.mkdir()
    status, shown = told(tmp_path, "join", "--logs", tmp_path, *arguments)
    assert (status, "can't be written" in shown) == (2, True)
    assert told(tmp_path, "join", "--logs", tmp_path / "none", *arguments)[0] == 2


def test_a_signal_ends_all_owners(tmp_path: Path) -> None:
    configs, logs = two_owners(tmp_path)
    process = start(
        tmp_path / "log", "precad", "join", "--logs", str(tmp_path), *configs
    )
    waiting.until(
        lambda: all(log.exists() and "connect" in log.read_text() for log in logs),
        lambda: "\n".join(log.read_text() for log in logs if log.exists()),
    )
    process.terminate()
    assert process.wait(60) == 128 + signal.SIGTERM


def two_owners(tmp_path: Path) -> tuple[list[str], list[Path]]:
    """Options of `precad join` for two owners without servers, and their logs."""
    owners = {"enrolment.clients": 2, "enrolment.min_clients": 2}
    task, run = tmp_path / "task.toml", tmp_path / "run"
    task.write_text(task_to_toml(task_with(logistic(3) | owners)), encoding="utf-8")
    files = [tmp_path / f"{name}.npz" for name in ("one", "two")]
    for file in files:
        np.savez(file, x=np.zeros((4, 3), np.float32), y=np.zeros(4, np.int64))
    data = [word for file in files for word in ("--data", file)]
    # Nobody is there.
    assert precad("setup", run, "--task", task, *data).exit_code == 0
    configs = [
        word
        for name in ("one", "two")
        for word in ("--config", str(run / f"{name}.toml"))
    ]
    return configs, [tmp_path / f"{name}.log" for name in ("one", "two")]
