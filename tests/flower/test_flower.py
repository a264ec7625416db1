"""Owners of precad as Flower's ClientApps, with the real Flower and real servers."""

import logging
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from examples.demo.local_processes import LocalDeployment
from flwr.app import Context, Message, Metadata, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from tests.conftest import small_task
from tests.rig.documents import Document
from torch import nn
from torch.utils.data import DataLoader, Dataset

from precad.client import TrainedModel, model_section
from precad.client.flower import client_app, records_of
from precad.client.records.torch_records import Records
from precad.common import errors, identifiers

NAMES = ("ward-1", "ward-2", "ward-3")
ROUNDS = 3


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def load_data(partition: int) -> DataLoader[Document]:
    """Batches as Flower Datasets give them."""
    rng = np.random.default_rng(partition)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    rows = [{"img": row, "label": int(row.sum() > 0)} for row in x]
    return DataLoader(cast("Dataset[Document]", rows), batch_size=16)


def context(settings: Path | None, partition: int = 0, **run: object) -> Context:
    config: dict[str, object] = {"partition-id": partition}
    if settings is not None:
        config["precad"] = str(settings)
    return Context(1, 7, config, RecordDict(), run)


def take_part() -> Message:
    metadata = Metadata(1, "message", 1, 7, "", "1", time.time(), 3600.0, "train")
    return Message(metadata=metadata, content=RecordDict())


def own_records(flower: Context) -> Records:
    partition = flower.node_config["partition-id"]
    assert isinstance(partition, int)
    return records_of(load_data(partition), "img", "label")


@pytest.mark.timeout(300)
def test_flower_apps_train_through_both_servers_and_tell_flower_nothing(
    tmp_path: Path,
) -> None:
    changes = {
        "model": model_section(net(), architecture="net", initial="uniform"),
        "training": {"learning_rate": 1.0, "rounds": ROUNDS},
        "enrolment": {"clients": 3, "min_clients": 3, "max_expected_records": 40.0},
        "deadlines": {"enrol": 120.0, "collect": 60.0},
        "privacy.record_rate": 0.5,
    }
    task = small_task(changes=changes)
    # Not what the model takes: the records that count are the app's own.
    nothing = (np.zeros((1, 5), np.float32), np.zeros(1, np.int64))
    data = {identifiers.ClientId(name): nothing for name in NAMES}
    app = client_app(net, records=own_records)
    with LocalDeployment(tmp_path, task, data) as deployment:
        deployment.start_servers()

        def owner(number: int) -> Document:
            settings = tmp_path / f"{NAMES[number]}.toml"
            reply = app(take_part(), context(settings, number))
            return {name: dict(record) for name, record in reply.content.items()}

        with ThreadPoolExecutor(len(NAMES)) as threads:
            replies = list(threads.map(owner, range(len(NAMES))))
    assert replies == [{"precad": {"ended": "over"}}] * len(NAMES)
    models = [
        TrainedModel.load(tmp_path / "state" / name / "model.safetensors", task)
        for name in NAMES
    ]
    assert [model.version for model in models] == [ROUNDS] * len(NAMES)
    assert len({str(model.digest) for model in models}) == 1


def test_an_owners_log_says_what_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [{"img": torch.zeros(1, 4), "label": torch.tensor([987_654])}]
    settings = tmp_path / "ward-1.toml"
    settings.write_text("client = 'ward-1'\n", encoding="utf-8")
    app = client_app(net, records=lambda _: records_of(bad))
    with (
        caplog.at_level(logging.ERROR, "precad"),
        pytest.raises(RuntimeError, match="own log") as told,
    ):
        app(take_part(), context(settings))
    assert str(tmp_path) not in str(told.value)
    assert told.value.__suppress_context__
    assert "ward-1.toml" in caplog.text


def test_settings_are_never_the_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flower = context(None, precad=str(tmp_path / "the-researchers.toml"))
    with pytest.raises(RuntimeError, match="own log"):
        client_app(net)(take_part(), flower)
    assert "node_config.precad" in caplog.text
    assert "the-researchers" not in caplog.text


def test_loaders_of_pairs_and_of_dictionaries_give_all_records() -> None:
    found = records_of(load_data(0), "img", "label")
    assert (found.inputs.shape, found.targets.shape) == ((40, 4), (40,))
    pairs = [(torch.ones(3, 2), torch.zeros(3, dtype=torch.int64))] * 2
    assert len(records_of(pairs)) == 6


@pytest.mark.parametrize(
    ("batches", "field"), [([], "batches"), ([{"x": 1}], "batch 0")]
)
def test_batches_without_records_or_with_other_keys_are_refused(
    batches: list[Document], field: str
) -> None:
    with pytest.raises(errors.Misconfiguration, match=field):
        records_of(batches, "img", "label")


def test_the_pages_code_makes_both_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "flower.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    project = ModuleType("myproject.task")
    project.__dict__.update(Net=net, load_data=lambda part: (load_data(part), None))
    monkeypatch.setitem(sys.modules, "myproject", ModuleType("myproject"))
    monkeypatch.setitem(sys.modules, "myproject.task", project)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["app"], ClientApp)
    assert len(names["records"](context(None))) == 40
    for identity in ("_node_id", "_run_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, identity, 1)
    grid = Mock()
    grid.get_node_ids.return_value = [7, 8]
    grid.send_and_receive.return_value = []
    names["main"](grid, None)
    sent = [
        each.metadata
        for call in grid.send_and_receive.call_args_list
        for each in call.args[0]
    ]
    told = [(each.dst_node_id, each.message_type) for each in sent]
    assert told == [(7, "train"), (8, "train")]
