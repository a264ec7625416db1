"""`precad health`: whether the part of this machine serves, for whoever restarts it."""

import sys
from pathlib import Path

import click

from precad.cli.options import PATH


@click.command()
@click.option("--config", "-c", type=PATH, required=True, help="The part's settings file.")
@click.option(
    "--wait",
    type=click.FloatRange(min=0.1),
    default=5.0,
    help="Seconds that it may take to answer.",
)
def health(config: Path, wait: float) -> None:
    """Ask the server or dealer of this machine whether it serves: 0 if so, else 1.

    By gRPC's health protocol, at the port of its own settings and with its own certificate; for
    containers, systemd and Kubernetes, which then start it again. Of several tasks one that serves
    is enough: the others are started again by the part itself, and a restart would stop them all.

        precad health --config settings.toml
    """
    from precad.common.errors import Misconfiguration, PrecadError  # noqa: PLC0415
    from precad.common.identity.credentials import Identity  # noqa: PLC0415
    from precad.common.process_settings import values_by_task  # noqa: PLC0415
    from precad.common.wire.ask_health import is_serving  # noqa: PLC0415

    answers = []
    for name, settings in values_by_task(config).items():
        listen, folder = settings.get("listen"), settings.get("identity")
        if not isinstance(listen, str) or not isinstance(folder, str):
            raise Misconfiguration(
                "config",
                str(config),
                "needs listen and identity, as those of a server and a dealer",
            )
        identity = Identity.load(config.resolve().parent / folder)
        role = identity.principal.role
        try:
            serves, why = is_serving(own_address(listen), role, identity, timeout_s=wait), ""
        except PrecadError as error:
            if not name:
                raise
            serves, why = False, f" ({error})"
        who = f"{role.value}, {name}" if name else role.value
        click.echo(f"{who}: {'serving' if serves else 'not serving'}{why}")
        answers.append(serves)
    if not any(answers):
        sys.exit(1)


def own_address(listen: str) -> str:
    """The address at which this machine reaches a port that it listens on."""
    host, _, port = listen.rpartition(":")
    return {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host) + f":{port}"  # noqa: S104
