"""One round with every part in one process: the protocol in readable form.

`run_round` plays the clients, both servers and the dealer, if the task has one, on the
same role objects that the processes use; only gRPC is missing. It is the oracle that
the networked run is tested against. The two servers run in two threads, because their
protocol is a conversation. Signers and verifiers are passed in, as link and dealing are
to the aggregator.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.rig.local_dealing import LocalDealing
from tests.rig.memory_link import memory_pair

from precad.aggregator.attempt_states import Finished, Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import HeldList, describe, match
from precad.aggregator.enrol.agreement import agree_nonces, agree_set_secret
from precad.aggregator.noise import NoiseSource, server_noise
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.release import (
    add_noise,
    aggregate,
    countersign,
    prepare,
    reconstruct,
)
from precad.aggregator.rounds.aggregator import Aggregator, CoinKey
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.rounds.start_attempt import answer, draw, propose
from precad.aggregator.server_messages import ServerSignatures
from precad.aggregator.store import Store
from precad.common.errors import RejectedSubmission
from precad.common.identifiers import SERVERS, ClientId, Digest, Role, Secret
from precad.common.model import ModelVector, model_digest
from precad.common.ring import RingVector
from precad.common.roster import Roster
from precad.common.submission import Signer, SubmissionContext, Verifier
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import NoDealer
from precad.norm_check.prime_field import group_of
from precad.norm_check.proof_submission import AnySubmission, ForProof
from precad.norm_check.share_update import share

_NO_OPENING = (Digest(bytes(32)), Role.SERVER_A)
"""What a client proves with that has no proof opening: it isn't in the cohort, and is
refused whatever it proves."""


def run_round(
    task: Task,
    roster: Roster,
    theta: ModelVector,
    updates: Mapping[ClientId, RingVector],
    *,
    store: Callable[[Role], Store],
    signers: Mapping[ClientId, Signer],
    verifier: Verifier,
    signatures: Callable[[Role], ServerSignatures],
    attempt: int = 0,
    noise: Callable[[Role], NoiseSource] | None = None,
) -> tuple[Finished, Finished]:
    """Play one round and return A's and B's outcome: same valid set, same model bytes.

    Args:
        task: the training's task.
        roster: all clients that enrolled; it fixes the denominator.
        theta: θ_t, ``[d]``.
        updates: the participating clients' encoded updates, ``[d] int64`` each, honest
            or not.
        store: gives each server its store, which is empty.
        signers: what each client signs with.
        verifier: how servers check what clients signed.
        signatures: gives each server what it signs with.
        attempt: t, the version and the attempt's number.
        noise: gives each server its noise, in place of the task's discrete Gaussian.

    Raises PeerViolation: the two servers disagree.
    """
    model = model_digest(task.digest, attempt, task.mechanism.parameters, theta)
    dealer = DealerRole.of(task) if task.has_dealer else None
    transports = dict(zip(SERVERS, memory_pair(), strict=True))
    # Each client's submissions, for A and for B, once both inboxes are open.
    shared: Future[list[tuple[AnySubmission, AnySubmission]]] = Future()

    def share_for(
        client: ClientId, update: RingVector
    ) -> tuple[AnySubmission, AnySubmission]:
        """Play a client: share its update, and return what it sends A and B."""
        context = SubmissionContext(
            task=task.digest,
            version=attempt,
            attempt=attempt,
            client=client,
            model=model,
        )
        proof = None
        if task.proof is not None:
            stated = [
                inboxes[role].proof_opening(attempt, client) or _NO_OPENING
                for role in SERVERS
            ]
            (opening_a, seed_holder), (opening_b, _) = stated
            proof = ForProof((opening_a, opening_b), seed_holder)
        return share(
            task,
            update,
            context,
            signers[client],
            proof,
            bound=task.mechanism.bound_of(roster[client]),
        )

    def connect(role: Role) -> Aggregator:
        """Make a server's aggregator, which joins the dealer and the other server."""
        patience_s = task.deadlines.peer
        link = PeerLink(
            transport=transports[role],
            task=task.digest,
            max_message_bytes=1 << 28,
            timeout_s=patience_s,
        )
        if dealer is None:
            dealing: NoDealer | LocalDealing = NoDealer()
        else:
            dealing = LocalDealing(
                dealer=dealer,
                role=role,
                timeout_s=patience_s,
            )
        return Aggregator(
            task=task,
            role=role,
            roster=roster,
            link=link,
            dealing=dealing,
            dealer_key=dealing.join(),
            set_secret=agree_set_secret(link, role, task),
            nonces=agree_nonces(link, role),
            signatures=signatures(role),
            coin_key=CoinKey(Secret.random()),
            noise=server_noise(task.mechanism) if noise is None else noise(role),
            store=store(role),
            cap=PrivacyCap(task),
        )

    def play(role: Role) -> Finished:
        """Play one server's part of the round, in a thread of its own."""
        aggregator = connect(role)
        inbox = inboxes[role]
        opened = _select(aggregator, inbox, attempt, model)
        # Submit and match.
        if role is Role.SERVER_A:
            # B opened its inbox before it agreed.
            try:
                shared.set_result(
                    [share_for(client, update) for client, update in updates.items()]
                )
            except Exception as error:
                shared.set_exception(error)
                raise
        for pair in shared.result(task.deadlines.peer):
            _submit(pair[SERVERS.index(role)], inbox)
        collected = inbox.close()
        theirs = HeldList.from_bytes(
            aggregator.link.exchange("held", describe(collected).to_bytes())
        )
        matched = match(opened, role, collected, theirs)
        # Validate, aggregate, add noise, prepare, countersign, send, reconstruct.
        with aggregator.in_process(opened) as validator:
            summed = aggregate(aggregator, matched, validator)
        noised = add_noise(summed, aggregator.noise, group_of(task))
        prepared = prepare(aggregator.store, noised, aggregator.shares)
        sent = countersign(aggregator, prepared)
        return reconstruct(aggregator, sent, theta.copy())

    with TemporaryDirectory() as spools, ThreadPoolExecutor(max_workers=2) as servers:
        inboxes = {
            role: Inbox(role, task, verifier, Path(spools) / role.value)
            for role in SERVERS
        }
        server_a = servers.submit(play, Role.SERVER_A)
        server_b = servers.submit(play, Role.SERVER_B)
        return server_a.result(), server_b.result()


def _select(
    aggregator: Aggregator, inbox: Inbox, attempt: int, model: Digest
) -> Opened:
    """Agree on the cohort for ``run_round``, by a joint coin, and open the inbox.

    A proposes and B checks.
    """
    drawn = draw(aggregator, attempt)
    if aggregator.role is Role.SERVER_A:
        proposed = propose(
            aggregator,
            attempt=attempt,
            version=attempt,
            drawn=drawn,
            model=model,
        )
        inbox.open(proposed)
        return proposed
    agreed = answer(
        aggregator,
        attempt,
        drawn,
        model,
        before_agreeing=inbox.open,
    )
    if agreed is None:
        raise AssertionError("A ended a training that has a round to play")
    return agreed


def _submit(submission: AnySubmission, inbox: Inbox) -> None:
    """Upload a client's submission to one server's inbox, for ``run_round``.

    The inbox keeps a rejection as that client's outcome.
    """
    try:
        upload = inbox.start(replace(submission, body=None))
        if submission.body is not None:
            upload.add(submission.body.prefix.reveal())
            for piece in submission.body.pieces():
                upload.add(piece)
        upload.finish()
    except RejectedSubmission as rejected:
        inbox.refuse(
            submission.context.attempt, submission.context.client, rejected.reason
        )
