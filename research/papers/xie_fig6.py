"""Xie et al. Fig. 6 (a), Fig. 8 (d) and Table 8: InsDP-FedAvg on CIFAR-10."""

from research.papers.xie_curves import ByNoise
from research.papers.xie_levels import CIFAR_RECORD_SETTINGS, RECORDS
from research.study import EXPERIMENTS, Experiment

PUBLISHED = {
    1.0: (4.6978, 0.8791),
    2.0: (1.4949, 0.8602),
    4.0: (0.6546, 0.8143),
    6.0: (0.4221, 0.7269),
    8.0: (0.3158, 0.6226),
}
"""ε at δ = 1e-5 and accuracy by σ (Xie et al. Table 8), without σ = 3, 5 and 7."""
FIGURE = ByNoise(
    RECORDS, PUBLISHED, "CNN trained before", tuple(range(11)), (0, 1, 2, 4)
)

EXPERIMENTS.register("xie-fig6")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 6 (a), Fig. 8 (d), Table 8",
        claim="On CIFAR the most records are certified at ε = .65.",
        does=(
            "Ensembles by InsDP-FedAvg on airplanes and birds, one round, without the"
            " paper's training on CIFAR-100 before. Both scales need --data: the small"
            " one cifar10-jpeg, recompressed, and logistic regression on images of 8×8."
        ),
        settings=CIFAR_RECORD_SETTINGS,
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
