"""`precad bench`: what validation and whole rounds cost here, beside the peers, in one run."""

from precad.cli.bench.command import bench

__all__ = ["bench"]
