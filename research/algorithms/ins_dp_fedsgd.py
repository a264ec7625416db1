"""InsDP-FedSGD (Xie et al., Algorithm 2): one noisy step of each drawn user a round."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from research.algorithms.instance_level import InstanceLevel, exact_epsilon, play
from research.algorithms.problem import ALGORITHMS, Problem, Trained

PRINTED = "record, by Proposition 1 as printed: no guarantee"


@ALGORITHMS.register("ins-dp-fedsgd")
def ins_dp_fedsgd(problem: Problem, settings: Mapping[str, Any]) -> Trained:
    """ε is exact, with the user's draw as an atom.

    Beside it what Proposition 1 says, which takes p·q for a record's rate although a
    user's records are drawn together (docs/privacy-accounting.md): a reproduction only.

    Args:
        problem: the problem.
        settings: ``InstanceLevel``'s, without local steps.
    """
    chosen = InstanceLevel.of(settings)
    theta, _ = play(problem, replace(chosen, local_steps=1))
    rate = chosen.users_per_round / len(problem.shares)
    printed = replace(chosen, batch_rate=rate * chosen.batch_rate).summed()
    return Trained(
        theta,
        {
            "record": exact_epsilon(chosen.summed(rate), chosen.delta),
            PRINTED: exact_epsilon(printed, chosen.delta),
        },
    )
