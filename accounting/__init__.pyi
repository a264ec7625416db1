# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.accounting.adversaries import (
    Adversary as Adversary,
    Basis as Basis,
    RECORD_LEVEL as RECORD_LEVEL,
    Run as Run,
    planned_participations as planned_participations,
)
from precad.accounting.events import (
    AccountantName as AccountantName,
    MOST_ROUNDS as MOST_ROUNDS,
    ReleaseCounts as ReleaseCounts,
    SampledGaussian as SampledGaussian,
    poisson_gaussian as poisson_gaussian,
    require_bound as require_bound,
    require_poisson as require_poisson,
    steps_as_chosen as steps_as_chosen,
)
from precad.accounting.exact import (
    Profile as Profile,
    epsilon_spent as epsilon_spent,
    group_profiles as group_profiles,
    largest_count as largest_count,
    round_of as round_of,
)
from precad.accounting.filter import (
    RenyiLimit as RenyiLimit,
    Steps as Steps,
    exact_epsilon as exact_epsilon,
    order_for as order_for,
)
from precad.accounting.gdp import (
    GdpCltAccountant as GdpCltAccountant,
    shifted as shifted,
)
from precad.accounting.group_rdp import (
    mixture_divergences as mixture_divergences,
)
from precad.accounting.guarantees import (
    ASSUMED as ASSUMED,
    EXACT as EXACT,
    PrivacyStatement as PrivacyStatement,
    at_owners as at_owners,
    cap_of as cap_of,
    planned_guarantees as planned_guarantees,
    spent as spent,
)
from precad.accounting.losses import (
    SampledRound as SampledRound,
    log_affinity as log_affinity,
    whole_shift as whole_shift,
)
from precad.accounting.rdp import (
    mixture_rdp as mixture_rdp,
)
from precad.accounting.worst_owners import (
    of_worst_owners as of_worst_owners,
)
