"""Tasks as their files have them."""

from precad.cli.local_deployment import to_toml
from precad.common.task import Task


def task_to_toml(task: Task) -> str:
    """A task file that reads back as ``task``."""
    return to_toml(task.model_dump(mode="json", exclude_none=True))
