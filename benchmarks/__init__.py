"""Speeds and costs, measured: scripts that keep their results in `results`, with the hardware."""
