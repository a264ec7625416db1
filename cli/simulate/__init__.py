"""`precad simulate`: a task's training in one process, to see what it would learn and cost."""

from precad.cli.simulate.command import simulate

__all__ = ["simulate"]
