"""Xie et al. Fig.

6 (b to e): attack inefficacy of InsDP-FedAvg on airplanes and birds.
"""

from research.papers.xie_inefficacy import ByEpsilon
from research.papers.xie_levels import CIFAR_RECORD_SETTINGS, RECORDS
from research.study import EXPERIMENTS, Experiment

PUBLISHED = {
    3.0: (1.261, 0.8447),
    4.0: (0.9146, 0.8099),
    5.0: (0.7187, 0.7601),
    6.0: (0.5923, 0.6865),
    7.0: (0.5038, 0.6307),
    8.0: (0.4385, 0.6065),
}
"""ε after two rounds at δ = 1e-5, and accuracy, by σ (Xie et al. App. B.1.2)."""
FIGURE = ByEpsilon(
    RECORDS,
    [{"attack": "pixel-backdoor"}, {"attack": "one-label"}],
    (0, 2, 8),
    PUBLISHED,
    (3.0, 8.0),
    (1.5, 2.0),
)

EXPERIMENTS.register("xie-fig6be")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 6 (b to e), Fig. 10 (b)",
        claim=(
            "On CIFAR too more poisoned records and less privacy mean lower inefficacy."
        ),
        does=(
            "A backdoor or flipped labels in k records of one user of ten by noise"
            " level, two rounds, C̄ = 2 as in the paper. Both scales need --data."
        ),
        settings={
            scale: {**settings, "rounds": 2, "bound": 2.0, "models": 50}
            for scale, settings in CIFAR_RECORD_SETTINGS.items()
        },
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
