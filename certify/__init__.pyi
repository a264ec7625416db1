# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.certify.finished_runs import (
    Ensemble as Ensemble,
    FinishedRun as FinishedRun,
    Unit as Unit,
)
from precad.certify.group_guarantees import (
    ExactGroups as ExactGroups,
    RenyiGroups as RenyiGroups,
)
from precad.certify.guarantee import (
    ApproximateDP as ApproximateDP,
    BOTH as BOTH,
    Curves as Curves,
    Direction as Direction,
    GaussianDP as GaussianDP,
    Guarantee as Guarantee,
    HASHES as HASHES,
    LARGEST_GROUP as LARGEST_GROUP,
    Moved as Moved,
    Redrawn as Redrawn,
    Replacements as Replacements,
    Unchanged as Unchanged,
    ValidationAllowance as ValidationAllowance,
    WithAbsent as WithAbsent,
    chance_to_pass as chance_to_pass,
    probabilities as probabilities,
    require_guarantee as require_guarantee,
)
from precad.certify.inefficacy import (
    MeanInterval as MeanInterval,
    attack_bounds as attack_bounds,
    expected_loss as expected_loss,
    fewest_attackers as fewest_attackers,
)
from precad.certify.intervals import (
    ConfidenceBudget as ConfidenceBudget,
    Intervals as Intervals,
    ScoreBound as ScoreBound,
    clopper_pearson_lower as clopper_pearson_lower,
    mean_half_width as mean_half_width,
    score_intervals as score_intervals,
    simuem as simuem,
    vote_counts as vote_counts,
    votes_of as votes_of,
)
from precad.certify.prediction import (
    Abstained as Abstained,
    COLOURS as COLOURS,
    Result as Result,
    average_certified_radius as average_certified_radius,
    certified_accuracy as certified_accuracy,
    certify_predictions as certify_predictions,
    certify_smoothing as certify_smoothing,
    picture as picture,
    plot_certified_accuracy as plot_certified_accuracy,
    plot_smoothing as plot_smoothing,
)
