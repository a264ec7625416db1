"""Xie et al. Fig. 1 (b), Fig. 8 (b) and Table 5: UserDP-FedAvg on CIFAR-10."""

from research.papers.xie_curves import ByNoise
from research.papers.xie_levels import CIFAR_USER_SETTINGS, USERS
from research.study import EXPERIMENTS, Experiment

PUBLISHED = {
    1.7: (0.8781, 0.8182),
    2.3: (0.5460, 0.8009),
    2.6: (0.4527, 0.7927),
    3.0: (0.3663, 0.7789),
    4.0: (0.2444, 0.7307),
    6.0: (0.1451, 0.6436),
}
"""ε at δ = 0.0029 and accuracy by σ (Xie et al. Table 5)."""
FIGURE = ByNoise(USERS, PUBLISHED, "CNN trained before", tuple(range(11)), (0, 1, 2, 4))

EXPERIMENTS.register("xie-table5")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 1 (b), Fig. 8 (b), Table 5",
        claim=(
            "On CIFAR the most users are certified at ε = .15, at a loss of accuracy."
        ),
        does=(
            "Ensembles by UserDP-FedAvg on airplanes and birds, one round, without the"
            " paper's training on CIFAR-100 before. Both scales need --data: the small"
            " one cifar10-jpeg, recompressed, and logistic regression on images of 8×8."
        ),
        settings=CIFAR_USER_SETTINGS,
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
