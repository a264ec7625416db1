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
STREAM = ("tests/vectors/test_proof.py",)
PROOF = ("tests/norm_check/test_norm_proof.py",)
SUBMISSION = ("tests/norm_check/test_proof_submission.py",)
CHECK = ("tests/aggregator/test_check_by_proof.py",)
DOOR = ("tests/aggregator/test_proofs_at_the_door.py",)
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
        'tests = 2 * checks.count("projections", run.projections)',
        'tests = 1 * checks.count("projections", run.projections)',
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
        "accounting/guarantees.py",
        "else known + (self.advantage_delta or 0.0)",
        "else known",
        REPORT,
    ),
    Named(
        "a word that is too large is reduced",
        "common/prime_field.py",
        "found[each] = self._drawn(again, start + int(each), 1)[0]",
        "found[each] -= np.uint64(P)",
        STREAM,
    ),
    Named(
        "a word that is too large makes place for the next one",
        "common/prime_field.py",
        "found[each] = self._drawn(again, start + int(each), 1)[0]",
        "found[each] = self._drawn(0, start + int(each) + again, 1)[0]",
        STREAM,
    ),
    Named(
        "the masking row follows from the seed",
        "norm_check/norm_proof.py",
        "mask_seed = Secret.random(KEY_BYTES)",
        "mask_seed = seed",
        ("tests/norm_check/test_what_a_proof_shows.py",),
    ),
    Named(
        "one challenge for the bits stands for both",
        "norm_check/norm_proof.py",
        ".words(2 * shape.bits).reshape(2, -1)",
        ".words(shape.bits)[None].repeat(2, axis=0)",
        PROOF,
    ),
    Named(
        "a point with t^N = −1 isn't drawn again",
        "norm_check/norm_proof.py",
        "if pow(int(words[0]), 2 * shape.points, P) != 1:",
        "if pow(int(words[0]), shape.points, P) != 1:",
        PROOF,
    ),
    Named(
        "both holders add the constants",
        "norm_check/norm_proof.py",
        "found = [norm - share.holds_constants * shape.bound**2]",
        "found = [norm - shape.bound**2]",
        PROOF,
    ),
    Named(
        "rows aren't bound to the seed",
        "common/share/proof_submission.py",
        '_hashed("proof-rows", self.ctx, self.commitment, self.update_digest)',
        '_hashed("proof-rows", self.ctx, self.update_digest)',
        SUBMISSION,
    ),
    Named(
        "a word of a body may be p or more",
        "common/share/proof_submission.py",
        "if first_not_below(words) is not None:",
        "if first_not_below(words[:0]) is not None:",
        DOOR,
    ),
    Named(
        "a word of the other server may be p or more",
        "aggregator/validate/check_by_proof.py",
        "if first_not_below(words) is not None:",
        "if first_not_below(words[:0]) is not None:",
        CHECK,
    ),
    Named(
        "a word of a noisy share may be p or more",
        "aggregator/release.py",
        "first_foreign(words)) is not None",
        "first_foreign(words[:0])) is not None",
        RELEASE,
    ),
    Named(
        "a header is answered in every turn",
        "aggregator/validate/check_by_proof.py",
        "if self._answered & headers or len(headers) < len(batch):",
        "if len(headers) < len(batch):",
        CHECK,
    ),
    Named(
        "a header that was signed anew is answered again",
        "aggregator/validate/check_by_proof.py",
        "headers = {each.header.signed for each in batch}",
        "headers = {each.header.whole_digest.value for each in batch}",
        CHECK,
    ),
    Named(
        "A may open another coin than it committed to",
        "aggregator/validate/check_by_proof.py",
        "if not hmac.compare_digest(committed(of_a), commitment):",
        "if not hmac.compare_digest(commitment, commitment):",
        CHECK,
    ),
    Named(
        "the coin isn't bound to the batch",
        "aggregator/validate/check_by_proof.py",
        "parts = task.value, batch.value, self._attempt, self._turn, opening",
        "parts = task.value, self._attempt, self._turn, opening",
        CHECK,
    ),
    Named(
        "a kept header is taken after the server was put back",
        "aggregator/collect/inbox.py",
        "if header.openings[SERVERS.index(self._role)] != current.opening:",
        "if header.openings[SERVERS.index(self._role)] == Digest(bytes(32)):",
        DOOR,
    ),
    Named(
        "a seed may come to either server",
        "aggregator/collect/inbox.py",
        "if header.seed_holder is not current.opened.seed_holders.get(header.context.client):",
        "if header.seed_holder not in SERVERS:",
        DOOR,
    ),
)
"""Of the first review, and of the proof's rules."""
