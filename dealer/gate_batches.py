"""What the dealer deals for submissions' masks where norms are checked by gates.

Keys of many submissions cost a fraction of what they cost one by one, and no server needs any
before it decides on all. So what is matched is projected at once, which is most of the work, and
its k + 1 offsets wait for those of others, without the seeds: until there are ``TOGETHER``, or a
server has asked for all that it will. They also travel together, as one array: a message for each
submission costs its sender and its receiver more than the keys in it.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Digest, Role
from precad.common.ring import RingVector, dot
from precad.common.secret import Secret
from precad.common.share.mask import norm_offset, word_mask
from precad.norm_check.dealing import Answer, GateKeys
from precad.norm_check.norm_gates import deal_gates, gate_context
from precad.norm_check.random_rows import Rows

Deliver = Callable[[Sequence[bytes], Answer], None]
"""Takes the answer about one context, or keys for several, in their order, to one server; doesn't
wait. It stands for the server's conversation."""
Work = Callable[[], None]
"""To be called in any thread; its answers go to both servers."""

TOGETHER = 400
"""Gates, at least, whose keys are generated in one call and sent in one message, of 0.4 MiB: of 10
submissions at k = 40. Of twice as many each costs a fifth less, and the dealer 3 MiB more."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Of one submission's gates, and what their keys' randomness is bound to."""

    named: Secret
    """``gate_context``: all that they depend on, as a digest."""
    words: RingVector = field(repr=False)
    """``[k + 1] int64``."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    context: bytes
    deliver: tuple[Deliver, Deliver]
    """To A, and to B."""
    offsets: Offsets = field(repr=False)


class Gates:
    """One attempt's gates; safe to call from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._computing = 0
        """Submissions that are matched, and whose offsets aren't known yet."""
        self._hurried = False

    def begin(
        self, context: bytes, deliver: tuple[Deliver, Deliver], compute: Callable[[], Offsets]
    ) -> Work:
        """A submission is matched; its keys are dealt by the work that is returned, or a later one.

        Args:
            deliver: to A and to B, directly: who relayed a key could change it, and look.
            compute: called in the work; holds the seeds until then.
        """
        with self._lock:
            self._computing += 1
        return partial(self._work, context, deliver, compute)

    def hurry(self) -> Work:
        """Nobody waits for more: what there is is dealt, from now on too."""
        with self._lock:
            self._hurried = True
            due = self._due()
        return partial(_deal, due)

    def forget(self, deliver: Deliver | None = None) -> None:
        """Drop what waits of a conversation that has ended, or all; the other server hears it."""
        with self._lock:
            gone = [each for each in self._waiting if deliver is None or deliver in each.deliver]
            self._waiting = [each for each in self._waiting if each not in gone]
        for each in gone:
            for other in each.deliver:
                if other != deliver:
                    over = PeerUnavailable("no keys are dealt: the attempt is over")
                    other((each.context,), over)

    def _work(
        self, context: bytes, deliver: tuple[Deliver, Deliver], compute: Callable[[], Offsets]
    ) -> None:
        try:
            known = [_Waiting(context, deliver, compute())]
        except BaseException:
            known = []
            raise
        finally:
            with self._lock:
                self._computing -= 1
                self._waiting += known
                due = self._due()
        _deal(due)

    def _due(self) -> list[_Waiting]:
        """What is to be dealt together now."""
        gates = sum(each.offsets.words.size for each in self._waiting)
        if gates < TOGETHER and not (self._hurried and not self._computing):
            return []
        due, self._waiting = self._waiting, []
        return due


def _deal(due: list[_Waiting]) -> None:
    """All randomness is drawn here, and bound to what each submission's offsets depend on.

    (docs/function-secret-sharing.md, "Randomness".)
    """
    if not due:
        return
    words = np.stack([each.offsets.words for each in due])
    both = deal_gates(words, [each.offsets.named for each in due])
    numbers = np.arange(words.size).reshape(words.shape)
    # The servers' workers ask in conversations of their own, two for each pair of them.
    asked: dict[tuple[Deliver, Deliver], list[int]] = {}
    for number, each in enumerate(due):
        asked.setdefault(each.deliver, []).append(number)
    for delivers, of in asked.items():
        contexts = [due[number].context for number in of]
        for deliver, keys in zip(delivers, both, strict=True):
            own = keys if len(of) == len(due) else keys.part(numbers[of].reshape(-1))
            deliver(contexts, GateKeys(own.to_bytes()))


def offsets_of_masks(
    masks: Iterable[RingVector],
    names: tuple[Digest, Digest, Digest],
    seeds: tuple[Secret, Secret],
    row_key: Secret,
    size: tuple[int, int],
) -> Offsets:
    """What the gates' offsets are; b, h and the client's words have no part in them.

    Args:
        masks: pieces of a = a_A + a_B; all but the last a multiple of 64 long.
        row_key: of this submission's rows, fresh.
    """
    rows, r = Rows(row_key, *size), 0
    for a in masks:
        rows.absorb(a)
        r += dot(a, a)
    roles = Role.SERVER_A, Role.SERVER_B
    rho_a, rho_b = (word_mask(s, role, *names) for s, role in zip(seeds, roles, strict=True))
    words = np.append(rows.z(), np.int64(norm_offset(r, rho_a, rho_b)))
    return Offsets(gate_context(names[0], *seeds, row_key), words)
