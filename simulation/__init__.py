"""A whole training in one process, without TLS and cryptography: `precad.simulate`."""

from precad.simulation.result import SimulatedRound, SimulatedTraining
from precad.simulation.rounds import View
from precad.simulation.simulated_training import simulate

__all__ = ["SimulatedRound", "SimulatedTraining", "View", "simulate"]
