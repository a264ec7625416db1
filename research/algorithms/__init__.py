"""Training algorithms by the names that their papers give them, each with its accountant."""

from research.algorithms.problem import ALGORITHMS, Problem, Trained

__all__ = ["ALGORITHMS", "Problem", "Trained"]
