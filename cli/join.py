"""`precad join`: take part as a data owner, from a settings file."""

import logging
from pathlib import Path
from typing import Annotated

import typer


def join(
    config: Annotated[
        list[Path],
        typer.Option(
            "--config",
            "-c",
            help="The settings file; several for several owners of this machine.",
            show_default=False,
        ),
    ],
    logs: Annotated[
        Path | None,
        typer.Option(help="A folder for the log of each; one file an owner.", show_default=False),
    ] = None,
) -> None:
    """Take part in a training as a data owner, until it ends.

    The settings file (TOML), with paths relative to it:

    \b
        client = "ward-3"
        task = "task.toml"
        server_a = "a.example:7301"
        server_b = "b.example:7302"
        identity = "keys/ward-3"
        data = "records.npz"        # arrays x and y, one row a record
        state = "state"             # what survives this process; one folder a task
        account = "../account"      # the data set's privacy account, over all tasks
        epsilon_limit = 4.0         # share nothing beyond this ε, all tasks together

    The records never leave this machine: each round sends one random-looking share of a clipped
    update to each server.

    Several settings files start several owners, each a process of its own, which load their
    libraries once and share them in memory.
    """  # noqa: D301 -- click reads the control character
    mine = config[0]
    if len(config) > 1 or logs is not None:
        from precad.client.together import load_owner, split  # noqa: PLC0415

        own = split(config, load_owner, logs)
        if own is None:
            return
        mine = own
    _take_part(mine)


def _take_part(config: Path) -> None:
    """Until the training ends."""
    from precad.client.record_file import read_client_data  # noqa: PLC0415
    from precad.client.settings import JoinSettings  # noqa: PLC0415 -- torch takes seconds

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("precad")
    settings = JoinSettings.load(config)
    owner = settings.data_owner(read_client_data(settings.data))
    result = owner.run()
    log.info(
        "%s: %d submissions, %d counted, %s; exact record-level ε over all tasks = %.3f (one "
        "server corrupted, δ = %g); final model %s",
        result.ended,
        result.submitted,
        result.counted,
        dict(result.rejected) or "none rejected",
        result.epsilon,
        owner.task.privacy.delta,
        result.model,
    )
