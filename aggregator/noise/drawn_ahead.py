"""A round's noise, drawn while uploads come in: it depends on none of them."""

from precad.aggregator.noise.gaussian import NoiseSource
from precad.common.clock import CLOCK, Clock
from precad.common.ring import RingVector


class DrawnAhead:
    """Noise that a thread of its own draws, to be used once.

    Args:
        source: draws it.
        dimension: d.
        clock: starts the thread, and waits for it.
    """

    def __init__(self, source: NoiseSource, dimension: int, clock: Clock = CLOCK) -> None:
        self._source = source
        self._dimension = dimension
        self._changed = clock.condition()
        self._outcome: RingVector | Exception | None = None
        self._taken = False
        clock.start_thread("noise", self._draw)

    def draw(self, dimension: int) -> RingVector:
        """``[d] int64``, once it is drawn; as ``NoiseSource.draw``.

        Raises:
            RuntimeError: it was used before, or is of another dimension: a caller's bug.
            Exception: whatever the source raised.
        """
        with self._changed:
            if self._taken or dimension != self._dimension:
                raise RuntimeError(f"noise for {self._dimension} words, used once: {dimension}")
            self._taken = True
            while self._outcome is None:
                self._changed.wait()
            outcome, self._outcome = self._outcome, None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _draw(self) -> None:
        outcome: RingVector | Exception
        try:
            outcome = self._source.draw(self._dimension)
        except Exception as error:  # noqa: BLE001 -- raised where the noise is asked for
            outcome = error
        with self._changed:
            self._outcome = outcome
            self._changed.notify_all()
