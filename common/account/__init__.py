"""Privacy accounting: mechanisms as events, accountants, and this system's three guarantees.

docs/privacy-accounting.md states every bound with its assumptions and source.
"""

from precad.common.account.accountant import Accountant, AccountantName
from precad.common.account.budget import (
    epsilon_by_participations,
    most_participations,
    record_epsilon,
)
from precad.common.account.clt import GdpCltAccountant
from precad.common.account.events import (
    Adjacency,
    AtomMixture,
    Denominator,
    Event,
    SampledGaussian,
    Sampling,
    poisson_gaussian,
)
from precad.common.account.exact import ExactAccountant
from precad.common.account.guarantees import (
    PLANNING_QUANTILE,
    Adversary,
    PrivacyStatement,
    accountant_named,
    event_for,
    guarantees,
    planned_participations,
    robustness_group_mu,
    task_guarantees,
)
from precad.common.account.rdp import Conversion, RdpAccountant

__all__ = [
    "PLANNING_QUANTILE",
    "Accountant",
    "AccountantName",
    "Adjacency",
    "Adversary",
    "AtomMixture",
    "Conversion",
    "Denominator",
    "Event",
    "ExactAccountant",
    "GdpCltAccountant",
    "PrivacyStatement",
    "RdpAccountant",
    "SampledGaussian",
    "Sampling",
    "accountant_named",
    "epsilon_by_participations",
    "event_for",
    "guarantees",
    "most_participations",
    "planned_participations",
    "poisson_gaussian",
    "record_epsilon",
    "robustness_group_mu",
    "task_guarantees",
]
