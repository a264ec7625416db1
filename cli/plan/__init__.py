"""`precad plan`: options become a search, its result a table, a picture and a task to copy."""

from precad.cli.plan.command import plan

__all__ = ["plan"]
