"""A whole training in one process, without TLS and without cryptography: `precad.simulate`."""

from precad.experiments.simulation.result import SimulatedRound, SimulatedTraining
from precad.experiments.simulation.simulate import simulate
from precad.experiments.simulation.view import View

__all__ = ["SimulatedRound", "SimulatedTraining", "View", "simulate"]
