"""`precad evaluate`: how well a trained model does on records of one's own."""

from dataclasses import asdict
from pathlib import Path

import click

from precad.cli.options import json_option, print_json
from precad.cli.trained import (
    config_option,
    data_argument,
    model_file_option,
    own_model_option,
    task_file_option,
    trained,
)


@click.command()
@data_argument
@config_option
@task_file_option
@model_file_option
@own_model_option
@click.option("--loss", help="A loss of your own, MODULE:NAME; cross-entropy unless given.")
@json_option
def evaluate(
    data: Path,
    config: Path | None,
    task: Path | None,
    model_file: Path | None,
    model: str | None,
    loss: str | None,
    as_json: bool,
) -> None:
    """How well a trained model does on records of one's own; nothing leaves this machine.

        precad evaluate held-out.npz --config ward-3.toml

    What it says is about these records, and has no privacy guarantee: whoever
    publishes it publishes something of them.
    """
    # Seconds of torch.
    from torch.nn import functional  # noqa: PLC0415

    from precad.client.gradients.torch_models import Applied  # noqa: PLC0415
    from precad.client.owner_settings import own_object  # noqa: PLC0415
    from precad.client.records.read_records import read_records  # noqa: PLC0415
    from precad.client.records.torch_records import as_records  # noqa: PLC0415

    found, module, settings = trained(config, task, model_file, model)
    own = None if settings is None else settings.own_loss()
    if loss is not None:
        own = own_object("--loss", loss)
    applied = Applied(module, found.task.model.parameters, own or functional.cross_entropy)
    columns = None if settings is None else settings.columns
    records = as_records(read_records(data, found.task.data, columns))
    result = applied.evaluate(found.theta, records)
    if as_json:
        print_json({"model": str(found.digest), "version": found.version, **asdict(result)})
    else:
        click.echo(f"{found}: {result}")
