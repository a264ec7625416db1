"""InsDP-FedAvg (Xie et al., Algorithm 3): several noisy steps of each drawn user a round."""

from collections.abc import Mapping
from typing import Any

from research.algorithms.instance_level import InstanceLevel, exact_epsilon, play
from research.algorithms.problem import ALGORITHMS, Problem, Trained


@ALGORITHMS.register("ins-dp-fedavg")
def ins_dp_fedavg(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """ε is exact, of the user that was drawn most often: users compose in parallel (Prop. 2).

    Args:
        problem: the problem.
        settings: ``InstanceLevel``'s.
    """
    chosen = InstanceLevel.of(settings)
    theta, most = play(problem, chosen)
    return Trained(theta, {"record": exact_epsilon(chosen.local(most), chosen.delta)})
