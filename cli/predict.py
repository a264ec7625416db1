"""`precad predict` and `precad evaluate`: a trained model on records of one's own."""

import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import click

from precad.cli.main import ARGUMENT, AsJson, command, print_json, require_writable
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from precad.client.owner_settings import JoinSettings
    from precad.client.participation import TrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class OfModel:
    """Which trained model is meant."""

    config: Annotated[
        Path | None, "An owner's settings: its task, and its state's model.", "--config", "-c"
    ]
    task: Annotated[Path | None, "The task, where there are no settings."]
    model_file: Annotated[Path | None, "model.safetensors; the settings' own unless given."]
    model: Annotated[str | None, "Your model, MODULE:NAME, where the task's isn't built in."]


Records = Annotated[Path, "The records: a file as for `precad join`.", ARGUMENT]


def trained(request: OfModel) -> "tuple[TrainedModel, Any, JoinSettings | None]":
    """The model, a torch module that it goes into, and the owner's settings where they are given.

    Raises Misconfiguration: an option is missing, or a file can't be used; TaskMismatch: the model
    is another task's.
    """
    from precad.client.gradients.own_weights import check_buffers  # noqa: PLC0415
    from precad.client.gradients.torch_models import build  # noqa: PLC0415
    from precad.client.owner_settings import JoinSettings, own_model  # noqa: PLC0415
    from precad.client.participation import MODEL_FILE, TrainedModel  # noqa: PLC0415

    task, model_file = request.task, request.model_file
    settings = None if request.config is None else JoinSettings.load(request.config)
    if settings is not None:
        task = settings.task if task is None else task
        model_file = settings.state / MODEL_FILE if model_file is None else model_file
    if task is None or model_file is None:
        raise Misconfiguration("--config", None, "give it, or --task and --model-file")
    found = TrainedModel.load(model_file, task)
    if request.model is not None:
        module = own_model(request.model)
    elif settings is None or (module := settings.own_model()) is None:
        module = build(found.task.model)
    check_buffers(module, found.task.model)
    return found, module, settings


@command()
def predict(
    of: OfModel,
    data: Records,
    out: Annotated[Path | None, "A .csv or .npy file; CSV on stdout unless given."],
    raw: Annotated[bool, "The model's outputs as they are: for a loss other than cross-entropy."],
) -> None:
    """What a trained model says of records; nothing leaves this machine.

        precad predict new.csv --config ward-3.toml --out predictions.csv

    A line a record: the likeliest class and the probability of each. With the task's [data] section
    a table is read as in training, and needs no target.
    """
    if out is not None and out.suffix not in (".csv", ".npy"):
        raise Misconfiguration("--out", str(out), "give a file that ends with .csv or .npy")
    require_writable("--out", out)
    import numpy as np  # noqa: PLC0415

    from precad.client.gradients.torch_models import Applied  # noqa: PLC0415
    from precad.client.records.read_records import read_inputs  # noqa: PLC0415
    from precad.client.records.torch_records import as_inputs  # noqa: PLC0415

    found, module, settings = trained(of)
    recipe = found.task.data
    rows = read_inputs(data, recipe, None if settings is None else settings.columns)
    applied = Applied(module, found.task.model.parameters)
    said = applied.outputs(found.theta, as_inputs(rows))
    if not raw:
        said = _probabilities(said)
    if out is not None and out.suffix == ".npy":
        np.save(out, said)
        return
    levels = () if recipe is None else recipe.target.levels
    if out is None:
        _write(sys.stdout, said, levels, raw=raw)
    else:
        with out.open("w", encoding="utf-8", newline="") as file:
            _write(file, said, levels, raw=raw)


def _probabilities(outputs: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """Softmax over columns, ``[n, classes] float32``. Raises Misconfiguration: there are none."""
    from scipy.special import softmax  # noqa: PLC0415

    if outputs.ndim != 2 or outputs.shape[1] < 2:
        remedy = f"the model gives {list(outputs.shape)}, no column a class: give --raw"
        raise Misconfiguration("--raw", None, remedy)
    shares: NDArray[np.float32] = softmax(outputs, axis=1)
    return shares


def _write(file: TextIO, said: "NDArray[np.float32]", levels: Sequence[str], *, raw: bool) -> None:
    flat = said.reshape(len(said), -1)
    writer = csv.writer(file, lineterminator="\n")
    named, name = ([], "output") if raw else (["class"], "probability")
    columns = (f"{name}_{number}" for number in range(flat.shape[1]))
    writer.writerow(["record", *named, *columns])
    for number, row in enumerate(flat):
        likeliest = int(row.argmax())
        label = [] if raw else [levels[likeliest] if levels else likeliest]
        writer.writerow([number, *label, *(f"{value:.6g}" for value in row.tolist())])


@command()
def evaluate(
    of: OfModel,
    data: Records,
    loss: Annotated[str | None, "A loss of your own, MODULE:NAME; cross-entropy unless given."],
    as_json: AsJson,
) -> None:
    """How well a trained model does on records of one's own; nothing leaves this machine.

        precad evaluate held-out.npz --config ward-3.toml

    What it says is about these records, and has no privacy guarantee: whoever
    publishes it publishes something of them.
    """
    from torch.nn import functional  # noqa: PLC0415 -- takes seconds

    from precad.client.gradients.torch_models import Applied  # noqa: PLC0415
    from precad.client.owner_settings import own_object  # noqa: PLC0415
    from precad.client.records.read_records import read_records  # noqa: PLC0415
    from precad.client.records.torch_records import as_records  # noqa: PLC0415

    found, module, settings = trained(of)
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
