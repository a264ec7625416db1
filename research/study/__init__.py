"""What an experiment is, and how one is run, kept and taken up again."""

from research.study.experiment import (
    EXPERIMENTS,
    Experiment,
    Result,
    Scale,
    Settings,
    Surroundings,
    Table,
)

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "Result",
    "Scale",
    "Settings",
    "Surroundings",
    "Table",
]
