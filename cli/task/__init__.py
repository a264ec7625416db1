"""`precad task`: make a task from what is wanted, check it, say what it guarantees."""

from precad.cli.task.command import task

__all__ = ["task"]
