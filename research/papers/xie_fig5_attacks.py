"""Xie et al. Fig.

5 (b, c): attack inefficacy of InsDP-FedAvg by number of bad records.
"""

from research.papers.xie_inefficacy import BOUND, MODELS, ByAttackers
from research.papers.xie_levels import RECORD_SETTINGS, RECORDS
from research.study import EXPERIMENTS, Experiment, Scale

FIGURE = ByAttackers(
    RECORDS,
    [{"attack": "pixel-backdoor"}, {"attack": "one-label"}],
    {Scale.SMALL: (0, 1, 2, 4, 8, 12), Scale.PAPER: (0, 1, 2, 4, 8, 12, 16, 20)},
    (0.2383, 0.964),
)

EXPERIMENTS.register("xie-fig5bc")(
    Experiment(
        paper="Xie et al.",
        figure="Fig. 5 (b, c)",
        claim="More poisoned records mean lower inefficacy, measured and certified.",
        does=(
            "A backdoor (BKD) or flipped labels (LF) in k records of one user of ten,"
            " who keeps to the protocol; σ = 10, four rounds. Bounds as published, and"
            " sound for records of one user that are replaced."
        ),
        settings={
            scale: {
                **settings,
                "rounds": 4,
                "noise_multiplier": 10.0,
                "bound": BOUND[scale],
                "models": MODELS,
            }
            for scale, settings in RECORD_SETTINGS.items()
        },
        cells=FIGURE.cells,
        measure=FIGURE.measure,
        table=FIGURE.table,
        plot=FIGURE.plot,
    )
)
