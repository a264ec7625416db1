"""Dopamine (Malekzadeh et al. 2021) as Xie et al. compare it: no credit for drawing users."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from research.algorithms.instance_level import InstanceLevel, exact_epsilon, play
from research.algorithms.problem import ALGORITHMS, Problem, Trained


@ALGORITHMS.register("dopamine")
def dopamine(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """InsDP-FedSGD's training; ε is exact at rate p in every round, with noise σ·√m.

    Args:
        problem: the problem.
        settings: ``InstanceLevel``'s, without local steps.
    """
    chosen = InstanceLevel.of(settings)
    theta, _ = play(problem, replace(chosen, local_steps=1))
    return Trained(theta, {"record": exact_epsilon(chosen.summed(), chosen.delta)})
