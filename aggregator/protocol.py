"""One round with every part in one process: the protocol in readable form.

`run_round` plays the clients, server A, server B and the dealer on the same role objects that
the processes use; only gRPC is missing. It is the oracle that the networked run is tested
against. The two servers run in two threads, because their protocol is a conversation. Who signs
and who checks is given to it, as link and dealing are to the aggregator.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.collect import Inbox
from precad.aggregator.collect.matching import describe, match
from precad.aggregator.enrol.agreement import agree_nonces, agree_set_secret
from precad.aggregator.noise import DiscreteGaussian, NoiseSource
from precad.aggregator.peer_link import PeerLink, memory_pair
from precad.aggregator.release import add_noise, aggregate, countersign, prepare, reconstruct
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.rounds.client_lists import HeldList
from precad.aggregator.rounds.joint_coin import draw
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.rounds.start_attempt import answer, propose
from precad.aggregator.rounds.states import Finished, Opened
from precad.aggregator.server_messages import ServerSignatures
from precad.aggregator.store import Store
from precad.common.errors import RejectedSubmission
from precad.common.identifiers import ClientId, Role
from precad.common.model import model_digest
from precad.common.ring import RingVector
from precad.common.roster import Roster
from precad.common.secret import Secret
from precad.common.share.header import Signer, SubmissionContext, Verifier
from precad.common.share.submission import Submission, shard
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole
from precad.dealer.local_dealing import LocalDealing

MAX_MESSAGE_BYTES = 1 << 28


def run_round(
    task: Task,
    roster: Roster,
    theta: NDArray[np.float64],
    updates: Mapping[ClientId, RingVector],
    *,
    store: Callable[[Role], Store],
    signers: Mapping[ClientId, Signer],
    verifier: Verifier,
    signatures: Callable[[Role], ServerSignatures],
    attempt: int = 0,
    noise: Callable[[Role], NoiseSource] | None = None,
) -> tuple[Finished, Finished]:
    """Play one round and return what server A and server B end with.

    Args:
        task: the task.
        roster: everybody enrolled; fixes the denominator.
        theta: ``[d] float64``, θ_t.
        updates: each participating client's encoded update, ``[d] int64``; honest or not.
        store: each server's, empty; for the task and the role.
        signers: each of these clients' pen.
        verifier: how both servers check what was signed.
        signatures: each server's own, and its check of what servers signed.
        attempt: t.
        noise: each server's noise; the task's discrete Gaussian unless given.

    Returns:
        A's and B's outcome: same valid set, same model bytes.

    Raises:
        PeerViolation: the two servers disagree.
    """
    model = model_digest(task.digest, attempt, task.model.parameters, theta)
    dealer = DealerRole.of(task)
    ends = dict(zip((Role.SERVER_A, Role.SERVER_B), memory_pair(), strict=True))
    submissions = [
        shard(
            x,
            SubmissionContext(task.digest, attempt, attempt, client, model),
            signers[client],
            words=task.words_in_headers,
        )
        for client, x in updates.items()
    ]

    def play(role: Role) -> Finished:
        link = PeerLink(
            ends[role],
            task.digest,
            max_message_bytes=MAX_MESSAGE_BYTES,
            timeout_s=task.deadlines.peer,
        )
        aggregator = Aggregator(
            task=task,
            role=role,
            roster=roster,
            link=link,
            dealing=LocalDealing(dealer, role, task.deadlines.peer),
            dealer_key=dealer.key_for(role),
            set_secret=agree_set_secret(link, role, task),
            nonces=agree_nonces(link, role),
            signatures=signatures(role),
            coin_key=CoinKey(Secret.random()),
            noise=DiscreteGaussian(task.noise_units) if noise is None else noise(role),
            store=store(role),
            cap=PrivacyCap(task),
        )
        inbox = Inbox(role, task, verifier, Path(spools) / role.value)

        def take(opened: Opened) -> None:
            inbox.open(opened.attempt, opened.cohort, opened.model, version=opened.version)

        # Select: a joint coin; A proposes, B checks.
        drawn = draw(aggregator, attempt)
        opened: Opened | None
        if role is Role.SERVER_A:
            opened = propose(aggregator, attempt, attempt, drawn, model)
            take(opened)
        else:
            opened = answer(aggregator, attempt, drawn, model, before_agreeing=take)
            if opened is None:
                raise AssertionError("A ended a training that has a round to play")
        # Submit and match.
        for pair in submissions:
            _submit(pair[0] if role is Role.SERVER_A else pair[1], inbox)
        collected = inbox.close()
        theirs = HeldList.from_bytes(link.exchange("held", describe(collected).to_bytes()))
        matched = match(opened, role, collected, theirs)
        # Validate, aggregate, add noise, prepare, countersign, send, reconstruct.
        noised = add_noise(aggregate(aggregator, matched), aggregator.noise)
        sent = countersign(aggregator, prepare(aggregator.store, noised))
        return reconstruct(aggregator, sent, theta.copy())

    with TemporaryDirectory() as spools, ThreadPoolExecutor(max_workers=2) as servers:
        server_a = servers.submit(play, Role.SERVER_A)
        server_b = servers.submit(play, Role.SERVER_B)
        return server_a.result(), server_b.result()


def _submit(submission: Submission, inbox: Inbox) -> None:
    """What a client's upload to one server amounts to. A rejection is the client's affair."""
    try:
        upload = inbox.start(replace(submission, body=None))
        if submission.body is not None:
            upload.add(submission.body.salt.reveal())
            for piece in submission.body.pieces():
                upload.add(piece)
        upload.finish()
    except RejectedSubmission as rejected:
        inbox.refuse(submission.context.attempt, submission.context.client, rejected.reason)
