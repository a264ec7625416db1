"""`precad predict`: what a trained model says of records."""

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from precad.cli.options import PATH
from precad.cli.trained import (
    config_option,
    data_argument,
    model_file_option,
    own_model_option,
    task_file_option,
    trained,
)
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@click.command()
@data_argument
@config_option
@task_file_option
@model_file_option
@own_model_option
@click.option("--out", type=PATH, help="A .csv or .npy file; CSV on stdout unless given.")
@click.option(
    "--raw",
    is_flag=True,
    help="The model's outputs as they are: for a loss other than cross-entropy.",
)
def predict(
    data: Path,
    config: Path | None,
    task: Path | None,
    model_file: Path | None,
    model: str | None,
    out: Path | None,
    raw: bool,
) -> None:
    """What a trained model says of records; nothing leaves this machine.

        precad predict new.csv --config ward-3.toml --out predictions.csv

    A line a record: the likeliest class and the probability of each. With
    the task's [data] section a table is read as in training, and needs no
    target.
    """
    if out is not None and out.suffix not in (".csv", ".npy"):
        raise Misconfiguration("--out", str(out), "give a file that ends with .csv or .npy")
    if out is not None and not out.parent.is_dir():
        raise Misconfiguration("--out", str(out), "there is no such folder; make it first")
    # Seconds of torch: not before the options are known to be wanted.
    import numpy as np  # noqa: PLC0415

    from precad.client.gradients.torch_models import Applied  # noqa: PLC0415
    from precad.client.records.read_records import read_inputs  # noqa: PLC0415
    from precad.client.records.torch_records import as_inputs  # noqa: PLC0415

    found, module, settings = trained(config, task, model_file, model)
    recipe = found.task.data
    rows = read_inputs(data, recipe, None if settings is None else settings.columns)
    applied = Applied(module, found.task.model.parameters)
    said = applied.outputs(found.theta, as_inputs(rows))
    if not raw:
        said = probabilities(said)
    if out is not None and out.suffix == ".npy":
        np.save(out, said)
        return
    levels = () if recipe is None else recipe.target.levels
    if out is None:
        _write(sys.stdout, said, levels, raw=raw)
    else:
        with out.open("w", encoding="utf-8", newline="") as file:
            _write(file, said, levels, raw=raw)


def probabilities(outputs: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """Softmax over columns, ``[n, classes] float32``.

    Raises:
        Misconfiguration: the model gives no column a class.
    """
    import numpy as np  # noqa: PLC0415

    if outputs.ndim != 2 or outputs.shape[1] < 2:
        raise Misconfiguration(
            "--raw", None, f"the model gives {list(outputs.shape)}, no column a class: give --raw"
        )
    raised = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares: NDArray[np.float32] = raised / raised.sum(axis=1, keepdims=True)
    return shares


def _write(file: TextIO, said: "NDArray[np.float32]", levels: Sequence[str], *, raw: bool) -> None:
    flat = said.reshape(len(said), -1)
    writer = csv.writer(file, lineterminator="\n")
    name = "output" if raw else "probability"
    columns: Iterable[str] = (f"{name}_{number}" for number in range(flat.shape[1]))
    writer.writerow(["record", *([] if raw else ["class"]), *columns])
    for number, row in enumerate(flat):
        likeliest = int(row.argmax())
        named = [] if raw else [levels[likeliest] if levels else likeliest]
        writer.writerow([number, *named, *(f"{value:.6g}" for value in row.tolist())])
