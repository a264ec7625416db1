"""What a client leaves with the two servers for the dealer, without a client."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from precad.common.identifiers import Digest, Role, Secret
from precad.common.ring import RingVector, commit, dot, mask_stream
from precad.norm_check.dealing import SquareRequest

SERVERS = (Role.SERVER_A, Role.SERVER_B)


@dataclass(frozen=True, slots=True)
class Halves:
    """Both servers' requests for one context, and the mask that they stand for."""

    of: Mapping[Role, SquareRequest]
    mask: RingVector

    @property
    def context(self) -> bytes:
        return self.of[Role.SERVER_A].context

    @property
    def square(self) -> int:
        return dot(self.mask, self.mask)


def halves(
    task: Digest,
    name: str,
    dimension: int,
    attempt: int = 0,
    *,
    seed: Secret | None = None,
    salt: Secret | None = None,
) -> Halves:
    """A client's: fresh seeds and salts, unless both servers are to have the given ones."""
    ctx = Digest.of(name.encode())
    seeds = {role: seed or Secret.random() for role in SERVERS}
    salts = {role: salt or Secret.random() for role in SERVERS}
    c_a, c_b = (commit(role, ctx, salts[role], seeds[role]) for role in SERVERS)
    requests = {
        role: SquareRequest(
            task, attempt, ctx.value, c_a.value, c_b.value, seeds[role], salts[role]
        )
        for role in SERVERS
    }
    parts = [mask_stream(seeds[role], role, ctx, c_a, c_b).words(dimension) for role in SERVERS]
    return Halves(requests, np.add(*parts))
