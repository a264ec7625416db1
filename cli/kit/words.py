"""What stands in a kit for people: the next steps, as commands."""

from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal

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
