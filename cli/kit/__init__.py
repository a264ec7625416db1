"""`precad kit`: all that a party of a consortium needs to begin, in one archive without a key."""

from precad.cli.kit.command import kit

__all__ = ["kit"]
