"""Every claim about questions that is measured, by the name of its results' file."""

from research.questions.evidence import coverage
from research.questions.evidence.pieces import Evidence

SIZES = (300, 3_000, 30_000)

CLAIMS = {
    "coverage": Evidence(
        claim=(
            "95 % intervals cover the pooled answer in 94.3 to 97 % of releases, more"
            " where a bin is wide, and together in 94.3 % at least"
        ),
        measure=coverage.measure,
        pieces=tuple(
            {"records": records, "epsilon": 1.0, "draws": 10_000, "seed": 1}
            for records in SIZES
        ),
    ),
}
