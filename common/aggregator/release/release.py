"""Noise, charge and release: after this the noisy share may leave, and never change."""

from precad.common.aggregator.round.journal import Journal
from precad.common.aggregator.round.states import Noised, Released, Summed
from precad.common.noise import NoiseSource
from precad.common.ring import to_bytes


def add_noise(summed: Summed, noise: NoiseSource) -> Noised:
    """Add this server's own noise, once."""
    return Noised(summed.counted, summed.share_sum + noise.draw(summed.share_sum.size))


def release(journal: Journal, noised: Noised) -> Released:
    """Charge the ledger and persist, in one; then, and only then, the share may be sent.

    Raises:
        AlreadyReleased: this attempt has released before.
    """
    counted, noisy = noised.counted, noised.noisy_share
    journal.release(
        counted.opened.attempt,
        counted.valid,
        counted.valid_set,
        counted.rejections,
        to_bytes(noisy),
    )
    return Released(counted, noisy)
