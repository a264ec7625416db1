"""What stands in a kit for people: the next steps as commands, and a further task's files."""

from string import Template

from precad.cli.kit_archive import TASK, Consortium
from precad.cli.local_deployment import to_toml
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.process_settings import TABLES
from precad.common.task import Task

_START = {
    Role.DEALER: "It comes first: both servers call it. No client needs to reach its port.",
    Role.SERVER_B: "After the dealer. Server A and every data owner must reach its port.",
    Role.SERVER_A: "After the dealer and server B. Every data owner must reach its port.",
    Role.CLIENT: "After the servers. It listens nowhere.",
}
_COMMANDS = {
    Role.DEALER: "precad serve dealer --config {name}/settings.toml",
    Role.SERVER_B: "precad serve b --config {name}/settings.toml",
    Role.SERVER_A: "precad serve a --config {name}/settings.toml",
    Role.CLIENT: "precad join --config {name}/settings.toml",
}


def next_steps(party: Principal, fingerprints: dict[str, str]) -> str:
    """The kit's NEXT.txt.

    Args:
        party: whose kit it is.
        fingerprints: what to read out, by what it is of.
    """
    name = party.name
    who = f"client {name}" if party.role is Role.CLIENT else name
    read_out = "\n".join(f"| {of} | `{value}` |" for of, value in fingerprints.items())
    start = ""
    if party.role is not Role.OPERATOR:
        start = _STARTING.format(
            when=_START[party.role],
            own=_OWNER.format(name=name) if party.role is Role.CLIENT else "",
            command=_COMMANDS[party.role].format(name=name),
            name=name,
        )
    return _STEPS.format(name=name, who=who, read_out=read_out) + start


_STEPS = """# {name}: next steps

This folder holds no key. Unpack it where {name} will run; the commands are typed beside it.

**1. Read out.** On the telephone with whoever sent it, not by the way that it came:

| of | SHA-256 |
| --- | --- |
{read_out}

`sha256sum {name}-kit.tar.gz` says that of the archive, and
`precad keys show {name}/keys/ca.pem` that of the root. Anything else than what you hear: stop.

**2. Make the key**, here, where it stays, and a request for its certificate:

    precad keys request {name}/keys {who}
    precad keys show {name}/keys/request.pem

Send `{name}/keys/request.pem` back, and read its SHA-256 out. Nothing else of `keys/` ever leaves.

**3. Take the certificate** that comes back, a folder of public files:

    precad keys accept {name}/keys {name}-certificate

It is refused unless it is of this key, this party and the root of step 1.
"""
_STARTING = """
**4. Start.** {when}
{own}
    {command}

or, so that it comes back by itself, with systemd (`precad-{name}.service` says where things go) or
in a container (`docker compose --file compose.yml up --detach`, once `chown -R 10001:10001 keys`
made the keys the container's user's).
"""
_OWNER = """\
Put your records where `settings.toml` says, add `epsilon_limit = …` (yours alone: nobody
else sets it), and look with `precad doctor --config {name}/settings.toml`.
"""

TABLE, SETTINGS, COMPOSE = "table.toml", "settings.toml", "compose.yml"
_PARTS = {
    Role.SERVER_A: ("server_a", "precad serve a"),
    Role.SERVER_B: ("server_b", "precad serve b"),
    Role.DEALER: ("dealer", "precad serve dealer"),
}


def contents(party: Principal, task: str, agreed: Consortium) -> dict[str, str]:
    """The files of a further task's kit, by their names in the party's folder.

    Args:
        party: who runs already, from a kit of its own.
        task: the task's name in settings; its files' folder too.
        agreed: what was agreed on for this task.
    """
    digest = Task.load(agreed.task).digest
    settings = agreed.further(party, task)
    named = {"name": party.name, "task": task}
    parts = {"NEXT.txt": [_BEGINNING.substitute(named, digest=digest)]}
    if party.role is not Role.OPERATOR:
        parts[TASK] = [agreed.task.read_text(encoding="utf-8")]
    if party.role is Role.CLIENT:
        parts[SETTINGS] = [to_toml(settings)]
        parts[COMPOSE] = [_OWNERS_COMPOSE.substitute(named)]
        parts["NEXT.txt"].append(_OWNERS_STEPS.substitute(named))
    elif party.role is Role.OPERATOR:
        asked = {"server_a": agreed.server_a, "server_b": agreed.server_b}
        parts["NEXT.txt"].append(_OPERATORS_STEPS.substitute(named | asked))
    else:
        service, command = _PARTS[party.role]
        port = str(settings["listen"]).rpartition(":")[2]
        parts[TABLE] = [f"\n[{TABLES}.{task}]\n{to_toml(settings)}"]
        parts[COMPOSE] = [_COMPOSE.substitute(named, service=service, port=port)]
        parts["NEXT.txt"].append(_FURTHER_STEPS.substitute(named, command=command))
    return {f"{task}/{name}": "".join(texts) for name, texts in parts.items()}


_BEGINNING = Template("""# $name: a further task, $task

Unpack it where the first kit was: it adds the folder `$name/$task`, and changes nothing that is
there. Key, certificate and root stay.

**1. Read out.** On the telephone with whoever sent it, not by the way that it came:

| of | SHA-256 |
| --- | --- |
| the task | `$digest` |

`sha256sum $name-$task-kit.tar.gz` says that of the archive. Anything else than what you hear: stop.
""")
_FURTHER_STEPS = Template("""
    precad task check $name/$task/task.toml

**2. Give it a table in the settings.** Once, before the first further task, what stands there
becomes the first task's own; its state and journal stay where they are:

    sed -i '1i [tasks.first]' $name/settings.toml

and for each further task:

    cat $name/$task/table.toml >> $name/settings.toml

Where the first task has `metrics`, `database` or `worker_listen`, give this one its own too.

**3. Start it.** After the first line of step 2 the part must be started anew, as it was:

    $command --config $name/settings.toml

or `systemctl restart precad-$name`. From then on it takes a further table up while the others go
on, with `systemctl kill --kill-whom=main --signal=HUP precad-$name`. In a container it is always

    docker compose --file compose.yml --file $task/compose.yml up --detach

with a `--file` for each further task. The firewall must let the others reach the new port, too.
""")
_OWNERS_STEPS = Template("""
    precad task check $name/$task/task.toml

**2. Look.** Its settings are a file of their own, `$name/$task/settings.toml`, with the records of
the first task and its account: `account` must be the folder that these records have had so far,
whatever the task, and `epsilon_limit`, which holds for all tasks together, stands in both files:

    precad doctor --config $name/$task/settings.toml

**3. Start it**, beside the first task or after it:

    precad join --config $name/$task/settings.toml

or in a container

    docker compose --file compose.yml --file $task/compose.yml up --detach
""")
_OPERATORS_STEPS = Template("""
**2. Ask** each server at this task's address:

    precad status $server_a --identity $name/keys
    precad status $server_b --server b --identity $name/keys
""")
_COMPOSE = Template("""\
# A further task of this part; with the first kit's file, and in its folder:
#     docker compose --file compose.yml --file $task/compose.yml up --detach
services:
  $service:
    ports: ["$port:$port"]
    volumes:
      - ./$task/task.toml:/precad/$task/task.toml:ro
""")
_OWNERS_COMPOSE = Template("""\
# A further task of this owner, with the same account; with the first kit's file, in its folder:
#     docker compose --file compose.yml --file $task/compose.yml up --detach
services:
  client-$task:
    image: $${PRECAD_IMAGE:-precad}-client
    command: [join, --config, $task/settings.toml]
    restart: on-failure:10
    mem_limit: 8g
    pids_limit: 512
    init: true
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    volumes:
      - ./$task/task.toml:/precad/$task/task.toml:ro
      - ./$task/settings.toml:/precad/$task/settings.toml:ro
      - ./keys:/precad/keys:ro
      - ./records.csv:/precad/records.csv:ro
      - state:/precad/state
""")
