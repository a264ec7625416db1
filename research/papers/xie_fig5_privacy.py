"""Xie et al. Fig. 5 (d, e): attack inefficacy of InsDP-FedAvg by ε."""

from research.papers.xie_inefficacy import BOUND, MODELS, ByEpsilon
from research.papers.xie_levels import RECORD_SETTINGS, RECORDS
from research.study import EXPERIMENTS, Experiment

PUBLISHED = {
    5.0: (0.5016, 0.9960),
    8.0: (0.3110, 0.9881),
    10.0: (0.2646, 0.9734),
    13.0: (0.2318, 0.9229),
    15.0: (0.2202, 0.8801),
    18.0: (0.2096, 0.8094),
    20.0: (0.2050, 0.7960),
}
"""ε after six rounds at δ = 1e-5, and accuracy, by σ (Xie et al. App. B.1.2)."""
FIGURE = ByEpsilon(
    RECORDS,
    [{"attack": "pixel-backdoor"}, {"attack": "one-label"}],
    (0, 4),
    PUBLISHED,
    (5.0, 10.0, 20.0),
)

EXPERIMENTS.register("xie-fig5de")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 5 (d, e)",
        claim=(
            "With stronger privacy a record's inefficacy is higher, measured and"
            " certified."
        ),
        does=(
            "A backdoor or flipped labels in 4 records of one user of ten by noise"
            " level, six rounds."
        ),
        settings={
            scale: {**settings, "rounds": 6, "bound": BOUND[scale], "models": MODELS}
            for scale, settings in RECORD_SETTINGS.items()
        },
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
