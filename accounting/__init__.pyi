# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.accounting.adversaries import (
    Adversary as Adversary,
    Basis as Basis,
    MALICIOUS_SERVER as MALICIOUS_SERVER,
    RECORD_LEVEL as RECORD_LEVEL,
    Run as Run,
    planned_participations as planned_participations,
)
from precad.accounting.composition import (
    Rounds as Rounds,
    delta_of_epsilon as delta_of_epsilon,
    epsilon_of_delta as epsilon_of_delta,
    profile as profile,
)
from precad.accounting.convolution import (
    Composed as Composed,
    OUTSIDE as OUTSIDE,
    SUMMED as SUMMED,
    Tilted as Tilted,
    convolved as convolved,
    dense as dense,
)
from precad.accounting.events import (
    Accountant as Accountant,
    AccountantName as AccountantName,
    BeyondReach as BeyondReach,
    MOST_ROUNDS as MOST_ROUNDS,
    ReleaseCounts as ReleaseCounts,
    SampledGaussian as SampledGaussian,
    checked_counts as checked_counts,
    poisson_gaussian as poisson_gaussian,
    require_bound as require_bound,
    require_rounds as require_rounds,
    steps_as_chosen as steps_as_chosen,
    steps_of as steps_of,
)
from precad.accounting.exact import (
    ExactAccountant as ExactAccountant,
    Profile as Profile,
    epsilon_of as epsilon_of,
    epsilon_spent as epsilon_spent,
    group_profiles as group_profiles,
    largest_count as largest_count,
    most_participations as most_participations,
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
from precad.accounting.loss_lattice import (
    Losses as Losses,
    UNIT as UNIT,
    discounted as discounted,
    log_sums as log_sums,
    reached as reached,
    split as split,
    summed as summed,
)
from precad.accounting.losses import (
    SampledRound as SampledRound,
    Shift as Shift,
    log_affinity as log_affinity,
    log_binomial as log_binomial,
    log_mixed as log_mixed,
    log_ratio as log_ratio,
    one_round as one_round,
    whole_shift as whole_shift,
)
from precad.accounting.rdp import (
    ORDERS as ORDERS,
    RdpAccountant as RdpAccountant,
    mixture_rdp as mixture_rdp,
    round_rdp as round_rdp,
)
from precad.accounting.worst_owners import (
    of_worst_owners as of_worst_owners,
)
