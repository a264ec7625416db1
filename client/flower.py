"""Owners of precad that Flower's runtime starts: a Flower project's model, loss and records.

One message comes to each owner through Flower, "take part", and one goes back, "it is
over"; models and updates never do. Clips, noise and rounds are in the task, and the
owner's limit, account and keys in a settings file on its machine: not in the app, which
its author may change. See docs/flower.md.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from precad.client.gradients.objectives import Loss
from precad.client.owner_settings import JoinSettings
from precad.client.records.torch_records import Records
from precad.common.errors import Misconfiguration

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

log = logging.getLogger("precad")

SETTINGS = "precad"
"""The key of a SuperNode's ``--node-config`` that names the owner's settings file."""


def client_app(
    model: Callable[[], nn.Module],
    loss: Loss | None = None,
    records: "Callable[[Context], Any] | None" = None,
) -> "ClientApp":
    """A Flower ClientApp that takes part in one precad training, from its enrolment to its end.

    ``model`` makes the module, whose parameters must be the task's. ``loss``, per
    record as in torch.nn.functional, and the settings' ``data`` are the settings'
    unless given; ``records`` may come in any form that ``DataOwner`` takes (see
    ``records_of`` for a project's loaders).

    The app answers ``train``. Its reply says that the training is over, and no more: no
    model, metric or account. The state folder has them, for the owner. What fails
    stands in the owner's own log; Flower's server is told that it failed.
    """
    from flwr.app import ConfigRecord, Message, RecordDict  # noqa: PLC0415 -- an extra
    from flwr.clientapp import ClientApp  # noqa: PLC0415

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: "Message", context: "Context") -> "Message":
        try:
            settings = JoinSettings.load(_settings_file(context))
            data = None if records is None else records(context)
            settings.data_owner(
                data=data,
                model=model(),
                loss=loss,
            ).run(progress=False)
        except Exception:
            # Flower sends an exception's text to its server, and ours may quote a
            # record.
            log.exception("taking part failed")
            raise RuntimeError(
                "this owner didn't take part: its own log says why"
            ) from None
        over = RecordDict({"precad": ConfigRecord({"ended": "over"})})
        return Message(content=over, reply_to=message)

    return app


def records_of(batches: Iterable[Any], inputs: Any = 0, target: Any = 1) -> Records:
    """All records of a DataLoader, in one pass: what a Flower project's ``load_data`` gives.

    Batches are pairs, or dictionaries as of Flower Datasets, with their keys or places,
    such as ``"img"`` and ``"label"``. A random augmentation counts as it comes out in
    this pass.

    Raises Misconfiguration: no batch, one without these keys, or a record that can't be
    used.
    """
    read: list[tuple[torch.Tensor, torch.Tensor]] = []
    for number, batch in enumerate(batches):
        try:
            read.append(
                (torch.as_tensor(batch[inputs]), torch.as_tensor(batch[target]))
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            remedy = (
                f"must have {inputs!r} and {target!r}: name the batches' own keys"
                f" ({error})"
            )
            raise Misconfiguration(
                f"batch {number}", type(batch).__name__, remedy
            ) from None
    if not read:
        raise Misconfiguration("batches", "none", "give a loader that has records")
    return Records(torch.cat([x for x, _ in read]), torch.cat([y for _, y in read]))


def _settings_file(context: "Context") -> Path:
    # Never the run's configuration: whoever starts a Flower run writes that one.
    given = context.node_config.get(SETTINGS)
    if not isinstance(given, str):
        remedy = "name the owner's settings file when the SuperNode is started"
        raise Misconfiguration(f"node_config.{SETTINGS}", given, remedy)
    return Path(given)
