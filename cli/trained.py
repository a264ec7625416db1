"""Options of the commands that apply a trained model: where it lies, and what it goes into."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precad.cli.options import PATH
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from precad.client.owner_settings import JoinSettings
    from precad.client.trained_model import TrainedModel

data_argument = click.argument("data", type=PATH, help="The records: a file as for `precad join`.")
config_option = click.option(
    "--config",
    "-c",
    type=PATH,
    help="A data owner's settings: its task, and the model in its state folder.",
)
task_file_option = click.option("--task", type=PATH, help="The task, where there are no settings.")
model_file_option = click.option(
    "--model-file", type=PATH, help="model.safetensors; the settings' own unless given."
)
own_model_option = click.option(
    "--model", help="A model of your own, MODULE:NAME, where the task's isn't built in."
)


def trained(
    config: Path | None, task: Path | None, model_file: Path | None, model: str | None
) -> "tuple[TrainedModel, Any, JoinSettings | None]":
    """The model, a torch module that it goes into, and the owner's settings where they are given.

    Raises:
        Misconfiguration: an option is missing, or a file can't be used.
        TaskMismatch: the model is another task's.
    """
    from precad.client.gradients.torch_models import build  # noqa: PLC0415
    from precad.client.owner_settings import JoinSettings, own_model  # noqa: PLC0415
    from precad.client.trained_model import MODEL_FILE, TrainedModel  # noqa: PLC0415

    settings = None if config is None else JoinSettings.load(config)
    if settings is not None:
        task = settings.task if task is None else task
        model_file = settings.state / MODEL_FILE if model_file is None else model_file
    if task is None or model_file is None:
        raise Misconfiguration("--config", None, "give it, or --task and --model-file")
    found = TrainedModel.load(model_file, task)
    if model is not None:
        return found, own_model(model), settings
    own = None if settings is None else settings.own_model()
    return found, build(found.task.model) if own is None else own, settings
