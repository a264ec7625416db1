"""Training algorithms by the names that their papers give them, each with its accountant."""

from precad.experiments.algorithms.problem import ALGORITHMS, Problem, Trained

__all__ = ["ALGORITHMS", "Problem", "Trained"]
