"""`precad demo`: a real training on this machine, watched live and summed up in plain words."""

from precad.cli.demo.command import demo

__all__ = ["demo"]
