"""Both servers hold the same: compared before anything depends on it."""

from precad.aggregator.rounds.messages import SetCheck
from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest
from precad.common.link import PeerLink


def agree(link: PeerLink, step: str, digest: Digest, count: int) -> None:
    """Compare a digest and a count with the other server's. Raises PeerViolation."""
    own = SetCheck(digest=str(digest), count=count)
    theirs = SetCheck.from_bytes(link.exchange(step, own.to_bytes()))
    if theirs != own:
        raise PeerViolation(
            f"the servers disagree at step {step!r}: ours {own.digest} ({own.count}), "
            f"theirs {theirs.digest} ({theirs.count}); nothing more is released"
        )
