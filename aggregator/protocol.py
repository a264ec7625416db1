"""One round with every part in one process: the protocol in readable form.

`run_round` plays the clients, both servers and the dealer, if the task has one, on the
same role objects that the processes use; only gRPC is missing. It is the oracle that
the networked run is tested against. The two servers run in two threads, because their
protocol is a conversation. Who signs and who checks is given to it, as link and dealing
are to the aggregator.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from precad.aggregator.attempt_states import Finished, Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import HeldList, describe, match
from precad.aggregator.enrol.agreement import agree_nonces, agree_set_secret
from precad.aggregator.noise import DiscreteGaussian, NoiseSource
from precad.aggregator.peer_link import PeerLink, memory_pair
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
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.model import ModelVector, model_digest
from precad.common.ring import RingVector
from precad.common.roster import Roster
from precad.common.submission import Signer, SubmissionContext, Verifier
from precad.common.task import Task
from precad.dealer.dealer_role import DealerRole, LocalDealing
from precad.norm_check.dealing import NoDealer
from precad.norm_check.prime_field import group_of
from precad.norm_check.proof_submission import SERVERS, AnySubmission, ForProof
from precad.norm_check.share_update import share

NOBODYS = Digest(bytes(32)), Role.SERVER_A


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

    ``theta`` is θ_t, ``[d]``, and ``attempt`` t. ``updates`` are the participating
    clients' encoded updates, ``[d] int64``, honest or not; the ``roster`` of all who
    enrolled fixes the denominator. Each server's ``store`` is empty; its ``noise`` is
    the task's discrete Gaussian unless given.

    Raises PeerViolation: the two servers disagree.
    """
    model = model_digest(task.digest, attempt, task.model.parameters, theta)
    dealer = DealerRole.of(task) if task.has_dealer else None
    ends = dict(zip(SERVERS, memory_pair(), strict=True))
    shared: Future[list[tuple[AnySubmission, AnySubmission]]] = Future()

    def share_for(
        client: ClientId, x: RingVector
    ) -> tuple[AnySubmission, AnySubmission]:
        context = SubmissionContext(
            task=task.digest,
            version=attempt,
            attempt=attempt,
            client=client,
            model=model,
        )
        stated = None
        if task.proof is not None:
            of_a, of_b = (
                inboxes[role].proof_opening(attempt, client) for role in SERVERS
            )
            # Whoever isn't in the cohort is refused, whatever it proves.
            (o_a, holder), (o_b, _) = of_a or NOBODYS, of_b or NOBODYS
            stated = ForProof((o_a, o_b), holder)
        return share(
            task,
            x,
            context,
            signers[client],
            stated,
        )

    def play(role: Role) -> Finished:
        patience_s = task.deadlines.peer
        link = PeerLink(
            ends[role], task.digest, max_message_bytes=1 << 28, timeout_s=patience_s
        )
        dealing = (
            NoDealer()
            if dealer is None
            else LocalDealing(
                dealer=dealer,
                role=role,
                timeout_s=patience_s,
            )
        )
        aggregator = Aggregator(
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
            noise=DiscreteGaussian(task.noise_units) if noise is None else noise(role),
            store=store(role),
            cap=PrivacyCap(task),
        )
        inbox = inboxes[role]
        # Select: a joint coin; A proposes, B checks.
        drawn = draw(aggregator, attempt)
        opened: Opened | None
        if role is Role.SERVER_A:
            opened = propose(
                aggregator,
                attempt=attempt,
                version=attempt,
                drawn=drawn,
                model=model,
            )
            inbox.open(opened)
        else:
            opened = answer(
                aggregator,
                attempt,
                drawn,
                model,
                before_agreeing=inbox.open,
            )
            if opened is None:
                raise AssertionError("A ended a training that has a round to play")
        # Submit and match.
        if role is Role.SERVER_A:
            # B opened its inbox before it agreed.
            try:
                shared.set_result(
                    [share_for(client, x) for client, x in updates.items()]
                )
            except Exception as error:
                shared.set_exception(error)
                raise
        for pair in shared.result(task.deadlines.peer):
            _submit(pair[SERVERS.index(role)], inbox)
        collected = inbox.close()
        theirs = HeldList.from_bytes(
            link.exchange("held", describe(collected).to_bytes())
        )
        matched = match(opened, role, collected, theirs)
        # Validate, aggregate, add noise, prepare, countersign, send, reconstruct.
        summed = aggregate(aggregator, matched)
        noised = add_noise(summed, aggregator.noise, group_of(task))
        sent = countersign(aggregator, prepare(aggregator.store, noised))
        return reconstruct(aggregator, sent, theta.copy())

    with TemporaryDirectory() as spools, ThreadPoolExecutor(max_workers=2) as servers:
        inboxes = {
            role: Inbox(role, task, verifier, Path(spools) / role.value)
            for role in SERVERS
        }
        server_a = servers.submit(play, Role.SERVER_A)
        server_b = servers.submit(play, Role.SERVER_B)
        return server_a.result(), server_b.result()


def _submit(submission: AnySubmission, inbox: Inbox) -> None:
    """What a client's upload to one server amounts to.

    A rejection is the client's affair.
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
