"""`precad audit`: canaries in trainings, and what an adversary really learns of them."""

from precad.cli.audit.command import audit

__all__ = ["audit"]
