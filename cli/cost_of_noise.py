"""What a task's noise costs: whether its records can teach anything beside it.

For `precad task` and `precad plan`, which warn of it.
"""

import math
from dataclasses import replace

from precad.accounting import Adversary, Run, planned_guarantees, spent
from precad.cli import default_rate
from precad.common import Task, upper

_NOTABLE = 1.1
"""Where so many times the ε would give as little noise, it is said."""
_MOST_NOISE = 0.25
"""Noise of a whole training over its signal, if all gradients agreed, beyond which
little is learnt: at 1 nothing is, at .4 half of what little noise leaves, of ten
digits."""


def noise_over_signal(task: Task) -> float:
    """Return a round's noise over the sum of all that is sampled, if all agreed.

    It is √2·σ·R'·√d/(q·p·N·R), of N records; where whole owners are the unit, and where
    the task doesn't say N, of its owners.
    """
    mechanism = task.mechanism
    noise = mechanism.noise_multiplier * mechanism.sensitivity
    units = mechanism.planned_units or task.enrolment.clients
    sampled = mechanism.owner_rate * mechanism.unit_rate * units
    return noise * math.sqrt(2 * mechanism.dimension) / (sampled * mechanism.unit_clip)


def excess_of_noise(task: Task) -> str | None:
    """Return by how much noise covers what such records can teach; None where it won't.

    Over T rounds the noise grows by √T and what gradients that all agree add up to by
    T. The ε and the number of records at which it is ``_MOST_NOISE`` of that are said.
    """
    mechanism = task.mechanism
    planned = mechanism.planned_units
    if planned is None:
        return None
    ratio = noise_over_signal(task) / math.sqrt(mechanism.releases)
    excess = ratio / _MOST_NOISE
    if excess <= 1:
        return None
    quieter = replace(
        Run.of(task), noise_multiplier=mechanism.noise_multiplier / excess
    )
    epsilon = spent(quieter.event(Adversary.ONE_SERVER), task.privacy.delta)
    return (
        f"the noise of all rounds is {ratio:.2g} times what {planned:,}"
        f" {mechanism.unit.plural} add up to, if all gradients agreed: little can be"
        f" learnt. {_MOST_NOISE:g} times takes ε = {upper(epsilon, 2)}, or"
        f" {math.ceil(planned * excess):,} {mechanism.unit.plural} at this ε"
    )


def cost_of_rates(task: Task, largest: int) -> str | None:
    """Return what the task's q and p cost in accuracy; None where that is little.

    Noise is compared with that of a task whose rounds draw everybody, at the p of
    ``default_rate`` for ``largest``, the records of the largest owner. A model that has
    more learns as with a smaller ε there, which is said.
    """
    mechanism = task.mechanism
    usual_rate = default_rate(largest)
    owner_rate = mechanism.owner_rate
    # Of both, for each record that is expected.
    share = owner_rate * mechanism.unit_rate / usual_rate
    if share >= 1:
        return None
    epsilon = planned_guarantees(task)[0].epsilon
    usual = replace(
        Run.of(task),
        noise_multiplier=mechanism.noise_multiplier / share,
        record_rate=usual_rate,
        client_rate=1.0,
    )
    equal = spent(usual.event(Adversary.ONE_SERVER), task.privacy.delta)
    if equal > epsilon / _NOTABLE:
        return None
    return (
        f"client_rate {owner_rate:g} and record_rate {mechanism.unit_rate:g} cost"
        f" accuracy: the noise is that of ε = {equal:.2g} with client_rate 1 and"
        f" record_rate {usual_rate:g}, for ε = {epsilon:.2g}. A server sees who takes"
        " part, so drawing fewer owners protects nobody better"
    )
