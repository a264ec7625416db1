"""Rounds for TensorBoard: a callback that writes each one's numbers."""

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from precad.common.errors import Misconfiguration


class TensorBoard:
    """A callback for ``DataOwner.run`` and ``precad.simulate``: every number of a round, by round.

    ```
    owner.run(on_round=TensorBoard("runs/ward-3"))
    ```

    Args:
        folder: for TensorBoard's files; as private as the rounds are.

    Raises:
        Misconfiguration: TensorBoard isn't installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as error:
            raise Misconfiguration(
                "tensorboard", str(folder), f'pip install "precad[tensorboard]" ({error})'
            ) from None
        self._writer = SummaryWriter(str(folder))

    def __call__(self, round_: Any, _theta: Any = None) -> None:
        """Write one round; what isn't a number is left out."""
        for name, value in _numbers(round_, ""):
            self._writer.add_scalar(name, value, round_.number)
        self._writer.flush()


def _numbers(value: Any, name: str) -> list[tuple[str, float]]:
    """All numbers within a round, by their paths."""
    match value:
        case bool() | int() | float():
            return [(name, float(value))]
        case dict():
            inner = list(value.items())
        case _ if is_dataclass(value):
            skipped = {"number", "rounds", "model"}
            inner = [(f.name, getattr(value, f.name)) for f in fields(value)]
            inner = [(key, each) for key, each in inner if key not in skipped]
        case _:
            return []
    return [pair for key, each in inner for pair in _numbers(each, f"{name}/{key}".strip("/"))]
