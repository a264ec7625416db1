"""`precad report`: one document of a training for whoever has to judge it."""

from precad.cli.report.command import report

__all__ = ["report"]
