"""Xie et al. Fig.

10 (a): the fewest bad records that may bring inefficacy down to J(D)/τ.
"""

from research.papers.xie_inefficacy import BOUND, MODELS, ByEpsilon
from research.papers.xie_levels import RECORD_SETTINGS, RECORDS
from research.study import EXPERIMENTS, Experiment

PUBLISHED = {
    5.0: (0.6439, 0.9958),
    8.0: (0.3937, 0.9883),
    10.0: (0.3172, 0.9758),
    13.0: (0.2626, 0.9523),
    20.0: (0.2179, 0.8572),
}
"""ε after ten rounds at δ = 1e-5, and accuracy, by σ (Xie et al. App. B.1.2)."""
FIGURE = ByEpsilon(
    RECORDS,
    [{"attack": "one-label"}],
    (0,),
    PUBLISHED,
    tuple(PUBLISHED),
    (1.5, 2.0, 4.0, 8.0),
)

EXPERIMENTS.register("xie-fig10")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 10 (a)",
        claim=(
            "A less private model is easier to attack: fewer poisoned records are"
            " needed."
        ),
        does=(
            "Clean ensembles by InsDP-FedAvg at five noise levels, ten rounds, J(D) at"
            " the goal of label flipping; the least k by Corollary 1, and soundly for"
            " records of one user that are replaced."
        ),
        settings={
            scale: {**settings, "rounds": 10, "bound": BOUND[scale], "models": MODELS}
            for scale, settings in RECORD_SETTINGS.items()
        },
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
