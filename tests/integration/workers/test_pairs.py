"""Pairs of worker processes do what one process does, and one that is lost costs little."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import cast

import grpc
import numpy as np
import pytest
from tests.integration.workers.conftest import Hire, Site
from tests.rig.waiting import until

from precad.aggregator.rounds.states import Summed
from precad.aggregator.workers.worker_pairs import WorkerPairs
from precad.aggregator.workers.worker_placement import ThisMachine, WorkerProcess
from precad.common.errors import PeerUnavailable, Rejection
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.prime_field import FIELD, RING, Group, group_of
from precad.common.ring import RingVector, clip_update
from precad.common.task import Task
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import PeerStub, WorkingStub

SEED = 20261122
TOO_LONG = (3, 7)
"""Whose norm is above the bound."""
UNCOUNTED = 5
CLIENTS = 11


def vectors_of(task: Task) -> Sequence[RingVector]:
    print("seed", SEED)  # noqa: T201 -- seen where a test fails
    rng = np.random.default_rng(SEED)
    made = []
    for number in range(CLIENTS):
        total = np.trunc(1e5 * rng.standard_normal(task.dimension)).astype(np.int64)
        made.append(clip_update(total, task.bound, task.fractional_bits))
        if number in TOO_LONG:
            made[-1][number] = 2 * task.bound
    return made


def name(number: int) -> ClientId:
    return ClientId(f"ward-{number:04d}")


def check_sum(
    outcome: tuple[Summed, Summed], vectors: Sequence[RingVector], group: Group = RING
) -> None:
    a, b = outcome
    bad = {name(number): Rejection.NORM_EXCEEDED for number in TOO_LONG}
    assert a.counted.rejections == b.counted.rejections == bad
    good = [x for n, x in enumerate(vectors) if n not in (*TOO_LONG, UNCOUNTED)]
    total = a.share_sum.copy()
    group.add(total, b.share_sum)
    assert group.decode(total).tolist() == cast("RingVector", sum(good)).tolist()


COUNTED = [name(number) for number in range(CLIENTS) if number != UNCOUNTED]


@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_three_pairs_find_what_one_and_none_find(hire: Hire, validation: str) -> None:
    """The same submissions, invalid and uncounted ones among them: the same set, the same share."""
    # The three get bodies over the network, the one opens its server's files.
    sites = {n: hire(n, validation=validation, same_disk=n == 1) for n in (1, 3)}
    vectors = vectors_of(sites[1].task)
    halves = sites[1].halves(vectors, 0)
    outcomes = [sites[1].in_process(halves, 0, counted=COUNTED)]
    for workers, site in sites.items():
        before = len(site.spent.get(Role.SERVER_A, []))
        outcomes.append(site.play(halves, 0, counted=COUNTED))
        assert site.spent[Role.SERVER_A][before:] == [(0, batch) for batch in range(workers)]
    for outcome in outcomes:
        check_sum(outcome, vectors, group_of(sites[1].task))
        for mine, first in zip(outcome, outcomes[0], strict=True):
            assert mine.counted == first.counted
            assert mine.share_sum.tolist() == first.share_sum.tolist()


def kill(site: Site, role: Role, number: int) -> None:
    """Without a word; its pool has seen it."""
    pool = site.own_workers[role].pool
    placed = pool.worker(number)
    assert placed is not None
    placed.stop()
    until(lambda: pool.worker(number) is not placed, "the end is seen")


@pytest.mark.parametrize("role", [Role.SERVER_A, Role.SERVER_B])
def test_a_pair_that_is_lost_after_its_batch_was_recorded_ends_the_attempt(
    hire: Hire, role: Role
) -> None:
    """And it is started again: the next attempt, shared afresh, goes through."""
    site = hire(2)
    vectors = vectors_of(site.task)

    def lose_one(at: Role, _pairs: WorkerPairs) -> None:
        if at is role:
            kill(site, role, 1)

    with pytest.raises(PeerUnavailable, match=r"worker|the other server"):
        site.play(site.halves(vectors, 0), 0, counted=COUNTED, disturb=lose_one)
    check_sum(site.play(site.halves(vectors, 1), 1, counted=COUNTED), vectors)


@pytest.mark.parametrize("role", [Role.SERVER_A, Role.SERVER_B])
def test_a_pair_that_is_lost_before_costs_nothing(hire: Hire, role: Role) -> None:
    """Nothing of it was recorded: another pair does its part, in the same attempt."""
    site = hire(2)
    vectors = vectors_of(site.task)

    def lose_one(at: Role, pairs: WorkerPairs) -> None:
        if at is role:
            kill(site, role, 1)
        # Both have noticed: nothing else could be asserted of the batches.
        until(lambda: pairs._links[1].error is not None, "the loss is noticed")

    outcome = site.play(site.halves(vectors, 0), 0, counted=COUNTED, disturb=lose_one, early=False)
    check_sum(outcome, vectors)
    assert site.spent[Role.SERVER_A] == site.spent[Role.SERVER_B] == [(0, 0)]


def refusal(site: Site, keys: Path, caller: Role | str, call: str) -> grpc.StatusCode | None:
    """How server B's worker answers this party; None where it lets it in."""
    placed = site.own_workers[Role.SERVER_B].pool.worker(0)
    assert placed is not None
    name = caller.value if isinstance(caller, Role) else caller
    identity = Identity.load(keys / name)
    with open_channel(f"127.0.0.1{placed.address}", identity, Role.SERVER_B) as channel:
        # Another task's: whoever is let in hears of that.
        begin = pb.WorkOrder(begin=pb.WorkBegin(task_digest=bytes(32)))
        try:
            if call == "Validate":
                list(WorkingStub(channel).Validate(iter([begin])))
            else:
                list(PeerStub(channel).Link(iter(())))
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return None


def test_a_worker_takes_orders_from_its_own_server_and_a_link_from_its_like_alone(
    hire: Hire, keys: Path
) -> None:
    site = hire(1)
    site.all_up()
    code = partial(refusal, site, keys)
    for stranger in ("ward-00", "operator", "dealer"):
        for call in ("Validate", "Link"):
            assert code(stranger, call) is grpc.StatusCode.PERMISSION_DENIED
    assert code(Role.SERVER_A, "Validate") is grpc.StatusCode.PERMISSION_DENIED
    assert code(Role.SERVER_B, "Link") is grpc.StatusCode.PERMISSION_DENIED
    assert code(Role.SERVER_B, "Validate") is grpc.StatusCode.FAILED_PRECONDITION
    assert code(Role.SERVER_A, "Link") is None


def test_nothing_secret_is_on_a_workers_command_line_or_in_its_environment(hire: Hire) -> None:
    # With proofs: workers that load no CrypTen are there in a second.
    site = hire(1, ThisMachine(), validation="proof")
    site.all_up()
    vectors = vectors_of(site.task)
    halves = site.halves(vectors, 0)
    seen: list[bytes] = []

    def look(at: Role, _pairs: WorkerPairs) -> None:
        placed = cast("WorkerProcess", site.own_workers[at].pool.worker(0))
        process = Path(f"/proc/{placed._process.pid}")
        seen.append((process / "cmdline").read_bytes() + (process / "environ").read_bytes())

    check_sum(site.play(halves, 0, counted=COUNTED, disturb=look), vectors, FIELD)
    given = [half.seed for at in halves.values() for half in at.values()]
    secrets = [seed.reveal() for seed in given if seed is not None]
    assert len(seen) == len(halves)
    for text in seen:
        assert b"workers.worker" in text
        for secret in secrets:
            assert secret not in text
            assert secret.hex().encode() not in text
