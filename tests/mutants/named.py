"""Mutants that a review made by hand and that no test killed then; each dies now.

Where a change is equivalent, ``equivalent`` says why, and so does a comment beside the code.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Named:
    """A change of a module's text, and the tests of which at least one fails under it."""

    name: str
    module: str
    old: str
    new: str
    tests: tuple[str, ...]


RELEASE = ("tests/aggregator/test_release_heads.py",)
REPORT = ("tests/integration/store/test_report.py",)
SURVIVORS = (
    Named(
        "sets aren't compared in heads",
        "aggregator/release.py",
        "head.attempt, head.valid_set, head.history",
        'head.attempt, "", head.history',
        RELEASE,
    ),
    Named(
        "a countersignature over another head is taken",
        "aggregator/release.py",
        "if countersigned != own:",
        "if not countersigned:",
        RELEASE,
    ),
    Named(
        "k instead of 2k tests in δ'",
        "accounting/guarantees.py",
        'tests = 2 * checks.count("projections", projections)',
        'tests = 1 * checks.count("projections", projections)',
        ("tests/accounting/test_guarantees.py",),
    ),
    Named(
        "p_B isn't capped by 1 − p_A",
        "certify/intervals.py",
        "np.where(sums_to_one, np.minimum(b, 1 - a + 1e-6), b)",
        "b",
        ("tests/certify/test_certify.py",),
    ),
    Named(
        "a too large sample is cut instead of emptied",
        "client/gradients/local_update.py",
        "indices = indices[:0]",
        "indices = indices[:most]",
        ("tests/client/test_poisonous_records.py",),
    ),
    Named(
        "a valid set's digest is without the submissions",
        "aggregator/release.py",
        "parts += [client.encoded(), matched.submissions[client].header.whole_digest.value]",
        "parts += [client.encoded()]",
        RELEASE,
    ),
    Named(
        "the other server's model digest isn't compared",
        "aggregator/release.py",
        "if found != own:",
        "if not found:",
        RELEASE,
    ),
    Named(
        "a seal's kind isn't signed",
        "common/identity/signatures.py",
        'f"seal/{kind.value}"',
        '"seal"',
        RELEASE,
    ),
    Named(
        "the report has σ without repeats",
        "cli/report_sources.py",
        "run.noise_multiplier / math.sqrt(1 + course.most_repeats)",
        "run.noise_multiplier / math.sqrt(1)",
        REPORT,
    ),
    Named(
        "the report's status is 0 where ledgers alone differ",
        "cli/report.py",
        "broken += found.differences or []",
        "broken += []",
        REPORT,
    ),
    Named(
        "the report's δ lacks its terms",
        "cli/report_sources.py",
        "else said.rejection_delta + (said.advantage_delta or 0.0)",
        "else said.rejection_delta",
        REPORT,
    ),
)
"""The review's, but for the client's word under `validation = "fss"`."""
