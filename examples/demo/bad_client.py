"""A client that misbehaves, as a process of its own: to rehearse and test a deployment.

``python -m examples.demo.bad_client --config client.toml --kind wraparound``
"""

import argparse
import logging
import os
import secrets
from dataclasses import replace
from pathlib import Path

import numpy as np

from precad.client.connection import Servers
from precad.client.owner_settings import JoinSettings
from precad.client.participation import Observer, RoundView
from precad.client.pending_update import Pair
from precad.common.identifiers import Digest, Secret
from precad.common.ring import RingVector
from precad.common.submission import HeldBody
from precad.norm_check.proof_submission import AnySubmission, ForProof
from precad.simulation.rounds import Forgery, forged_update

DROPOUT = "dropout"
"""The kind of a client that vanishes."""
KINDS = (*(forgery.value for forgery in Forgery), DROPOUT)
"""How a bad client may misbehave, by name."""
DROPOUT_AFTER = 3
"""A dropout trains honestly for this many rounds and then vanishes without a word."""


class _GarbageServers(Servers):
    """Connection whose every other upload is garbage.

    A part with a seed gets one that opens nothing, a part with a body one of a wrong
    length.
    """

    def prepare(
        self,
        *,
        version: int,
        attempt: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        """Return both parts: honest in even attempts, garbage in odd ones.

        The garbage comes with the honest update's signed header.
        """
        part_a, part_b = super().prepare(
            version=version,
            attempt=attempt,
            model=model,
            x=x,
            proof=proof,
        )
        if attempt % 2 == 0:
            return part_a, part_b
        return _garbage(part_a, x.nbytes), _garbage(part_b, x.nbytes)


def _garbage(part: AnySubmission, size: int) -> AnySubmission:
    """Return a server's part with a random seed, or a body of over ``size`` bytes."""
    if part.body is None:
        return replace(part, seed=Secret.random())
    return replace(part, body=HeldBody(Secret.random(), secrets.token_bytes(size + 5)))


def run(settings: JoinSettings, kind: str) -> None:
    """Take part as a bad client of ``kind``, one of ``KINDS``, until training ends."""
    owner = settings.data_owner()
    connection = _GarbageServers if kind == Forgery.GARBAGE.value else Servers

    def compute(view: RoundView) -> RingVector:
        """Return what is submitted in place of the owner's update, ``[d] int64``."""
        honest = owner.update(view)
        if kind == DROPOUT:
            if view.attempt >= DROPOUT_AFTER:
                # No goodbye, no clean-up: as when a machine loses power.
                os._exit(0)
            return honest
        forged = forged_update(Forgery(kind), owner.task, honest)
        return np.asarray(forged, dtype=np.int64)

    # The private method takes part without an owner's own guards.
    owner._take_part(Observer(), compute, connection)  # noqa: SLF001


def main() -> None:
    """Run the command line of the bad client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config",
        type=Path,
        required=True,
        help="as for `precad join`",
    )
    parser.add_argument(
        "--kind",
        choices=KINDS,
        required=True,
        help="how it misbehaves",
    )
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    run(JoinSettings.load(arguments.config), arguments.kind)


if __name__ == "__main__":
    main()
