"""The papers' experiments, a module for each figure; importing this registers all of them."""

from precad.experiments.papers import (
    liu_fig1,
    precad_check,
    precad_fig2,
    precad_fig3,
    precad_fig4,
    precad_fig5,
    precad_table1,
    xie_fig1,
    xie_fig2,
    xie_fig5,
    xie_table9,
)

__all__ = [
    "liu_fig1",
    "precad_check",
    "precad_fig2",
    "precad_fig3",
    "precad_fig4",
    "precad_fig5",
    "precad_table1",
    "xie_fig1",
    "xie_fig2",
    "xie_fig5",
    "xie_table9",
]
