"""The dealer: two keys, and the words that make the servers' streams correlated."""

import threading
from collections.abc import Mapping
from math import prod

import numpy as np

from precad.common.deal.program import comparison_triples
from precad.common.deal.request import DealRequest
from precad.common.deal.streams import binary_stream, inner_product_stream
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation, TaskMismatch
from precad.common.identifiers import Digest, Role
from precad.common.keystream import KEY_BYTES
from precad.common.ring import MODULUS, RingVector, dot, signed
from precad.common.secret import Secret

_SERVERS = (Role.SERVER_A, Role.SERVER_B)
_CHUNK = 1 << 16
"""Words of a that are held at once."""


class DealerRole:
    """Deals to one task's two servers; never sees anything of a client.

    Safe to call from several threads.

    Args:
        task: digest of the task.
        keys: 32 secret bytes shared with each server; fresh ones from the operating system's
            CSPRNG unless given.

    Raises:
        Misconfiguration: a key is missing or of another length, or both are the same, which
            would show each server the other's part.
    """

    def __init__(self, task: Digest, keys: Mapping[Role, Secret] | None = None) -> None:
        if keys is None:
            keys = {role: Secret.random(KEY_BYTES) for role in _SERVERS}
        if set(keys) != set(_SERVERS):
            raise Misconfiguration("keys", list(keys), "give one for each of the two servers")
        for role, key in keys.items():
            if len(key) != KEY_BYTES:
                raise Misconfiguration(f"keys[{role.value}]", key, f"must have {KEY_BYTES} bytes")
        if keys[Role.SERVER_A] == keys[Role.SERVER_B]:
            raise Misconfiguration("keys", list(keys), "the two servers need different keys")
        self._task = task
        self._keys = dict(keys)
        self._dealt: dict[int, tuple[DealRequest, set[Role]]] = {}
        """By batch, of the newest attempt: an older one is never dealt for again."""
        self.newest_attempt = -1
        self._lock = threading.Lock()

    def key_for(self, role: Role) -> Secret:
        """The key shared with one server. Raises PeerViolation for any other role."""
        if role not in self._keys:
            raise PeerViolation(f"{role.value} asked the dealer; only servers may")
        return self._keys[role]

    def corrections(self, role: Role, request: DealRequest) -> RingVector:
        """The correction words of a request, once to each server.

        Args:
            role: who asks, from its certificate.
            request: both servers' request for one batch.

        Returns:
            ``[request.correction_words] int64`` for server B: for each submission
            a·a − r_A, then for each binary triple (a & b) ⊕ c_A. Empty for server A, whose
            part is all expanded from its key.

        Raises:
            PeerViolation: the role isn't a server, or this batch was asked with another shape.
            PeerUnavailable: it was dealt to this server before, or a newer attempt has begun.
            TaskMismatch: the request is for another task.
        """
        self.key_for(role)
        self._admit(role, request)
        if role is Role.SERVER_A:
            return np.empty(0, dtype=np.int64)
        inner = [self._inner_product(request, client) for client in range(request.clients)]
        triples = comparison_triples(request.comparisons)
        binary = [self._binary(request, n, prod(shape)) for n, (shape, _) in enumerate(triples)]
        return np.concatenate([np.array(inner, dtype=np.int64), *binary])

    def _admit(self, role: Role, request: DealRequest) -> None:
        if request.task != self._task:
            raise TaskMismatch(str(self._task), str(request.task))
        with self._lock:
            if request.attempt > self.newest_attempt:
                self.newest_attempt = request.attempt
                self._dealt.clear()
            first, served = self._dealt.setdefault(request.batch, (request, set()))
            again = request.attempt < self.newest_attempt or role in served
            served.add(role)
        if again:
            raise PeerUnavailable(f"attempt {request.attempt} is dealt for once; take a new one")
        if first != request:
            what = f"attempt {request.attempt}, batch {request.batch}"
            raise PeerViolation(f"{what} was asked for before with another shape or other nonces")

    def _inner_product(self, request: DealRequest, client: int) -> int:
        of_a = inner_product_stream(self._keys[Role.SERVER_A], request, client)
        of_b = inner_product_stream(self._keys[Role.SERVER_B], request, client)
        square = 0
        for start in range(0, request.dimension, _CHUNK):
            size = min(_CHUNK, request.dimension - start)
            a = of_a.words(size) + of_b.words(size)
            square = (square + dot(a, a)) % MODULUS
        return signed(square - int(of_a.words(1)[0]))

    def _binary(self, request: DealRequest, number: int, size: int) -> RingVector:
        of_a = binary_stream(self._keys[Role.SERVER_A], request, number)
        of_b = binary_stream(self._keys[Role.SERVER_B], request, number)
        a = of_a.words(size) ^ of_b.words(size)
        b = of_a.words(size) ^ of_b.words(size)
        return (a & b) ^ of_a.words(size)
