"""A server that adds no noise: what its owners added shows in the model, to the bit."""

import numpy as np

from precad.aggregator import server_process
from precad.cli import start
from precad.common.mechanism import Mechanism
from precad.common.ring import RingVector


class NoNoise:
    """In the noise's place."""

    def draw(self, dimension: int) -> RingVector:
        return np.zeros(dimension, np.int64)


def no_noise(_: Mechanism) -> NoNoise:
    return NoNoise()


if __name__ == "__main__":
    server_process.server_noise = no_noise  # type: ignore[attr-defined, assignment]
    start.main()
