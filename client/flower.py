"""Owners of precad that Flower's runtime starts: a Flower project's model and data.

One message comes to each owner through Flower, "take part", and one goes back, "it is
over"; models and updates never go through Flower. Clips, noise and rounds are in the
task. The owner's limit, account and keys are in a settings file on its machine: not in
the app, which its author may change. See docs/flower.md.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from precad.client.gradients import Loss
from precad.client.owner_settings import JoinSettings
from precad.client.records import Records
from precad.common import Misconfiguration, log

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp


SETTINGS = "precad"
"""The key of a SuperNode's ``--node-config`` that names the owner's settings file."""
Batch = Any
"""One item of a loader: a pair, or a dictionary, of tensors or arrays."""


def client_app(
    model: Callable[[], nn.Module],
    loss: Loss | None = None,
    records: "Callable[[Context], object] | None" = None,
) -> "ClientApp":
    """Return a Flower ClientApp that takes part in one precad training, to its end.

    The app answers ``train``. Its reply says that the training is over, and no more: no
    model, metric or account. The state folder has them, for the owner. What fails
    stands in the owner's own log; Flower's server is told that it failed.

    Args:
        model: makes the module, whose parameters must be the task's.
        loss: for one record at a time, as in torch.nn.functional; the settings' unless
            given.
        records: returns the records, in any form that ``DataOwner`` takes (see
            ``records_of`` for a project's loaders); the settings' ``data`` unless
            given.
    """
    from flwr.app import ConfigRecord, Message, RecordDict  # noqa: PLC0415 -- an extra
    from flwr.clientapp import ClientApp  # noqa: PLC0415

    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: "Message", context: "Context") -> "Message":
        """Take part from the enrolment to the end, and say that it is over."""
        try:
            owner = JoinSettings.load(_settings_file(context)).data_owner(
                data=None if records is None else records(context),
                model=model(),
                loss=loss,
            )
            owner.run(progress=False)
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


def records_of(
    batches: Iterable[Batch], inputs: int | str = 0, target: int | str = 1
) -> Records:
    """Return all records of a DataLoader, read in one pass.

    A Flower project's ``load_data`` gives such a loader. Batches are pairs, or
    dictionaries as of Flower Datasets; ``inputs`` and ``target`` are their places or
    keys, such as ``"img"`` and ``"label"``. A random augmentation counts as it comes
    out in this pass.

    Raises Misconfiguration: no batch, one without these keys, or a record that can't be
    used.
    """
    input_parts = []
    target_parts = []
    for number, batch in enumerate(batches):
        try:
            input_parts.append(torch.as_tensor(batch[inputs]))
            target_parts.append(torch.as_tensor(batch[target]))
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Misconfiguration(
                f"batch {number}",
                type(batch).__name__,
                f"must have {inputs!r} and {target!r}: name the batches' own keys"
                f" ({error})",
            ) from None
    if not input_parts:
        raise Misconfiguration("batches", "none", "give a loader that has records")
    return Records(torch.cat(input_parts), torch.cat(target_parts))


def _settings_file(context: "Context") -> Path:
    """Return the owner's settings file, which its SuperNode was started with.

    It is never taken from the run's configuration: whoever starts a Flower run writes
    that one.

    Raises Misconfiguration: none is named.
    """
    path = context.node_config.get(SETTINGS)
    if not isinstance(path, str):
        raise Misconfiguration(
            f"node_config.{SETTINGS}",
            path,
            "name the owner's settings file when the SuperNode is started",
        )
    return Path(path)
