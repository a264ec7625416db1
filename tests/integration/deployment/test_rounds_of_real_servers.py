"""A training of real servers, of which each test plays the rounds that it wants."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
from examples.demo.local_processes import LocalDeployment
from tests.integration.deployment.conftest import SERVERS, deployments
from tests.rig import clock, tasks, terminal, waiting
from tests.rig.commands import precad
from tests.rig.corpus import honest, multiple, too_long, unit, wrapping
from tests.rig.documents import Document
from tests.rig.light_client import LightClient, joined
from tests.rig.rounds import no_noise, play_round

from precad.cli import operate
from precad.common import errors, fixed_point, kernel, proof_shape, ring
from precad.common.identifiers import Digest, Role
from precad.common.identity import credentials, mutual_tls
from precad.common.identity.mutual_tls import open_channel
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task
from precad.common.wire.calls import OperatorConnection
from precad.common.wire.messages import RoundOpen

Act = Callable[[LightClient, RoundOpen], object]

CLIENTS = 24
COLLECT_S = 600.0  # Rounds end when all have submitted: none waits for it
COUNTED, NORM_EXCEEDED = "counted", errors.Rejection.NORM_EXCEEDED.value


@dataclass(slots=True)
class Running:
    deployment: LocalDeployment
    clients: list[LightClient]
    task: Task
    last: int = -1

    def play(
        self, acts: Mapping[int, Act | ring.RingVector], rest: ring.RingVector
    ) -> tuple[RoundOpen, list[str]]:
        """Play a round: what the clients with these numbers do, and what the others
        submit.

        A vector stands for an honest submission of it. Returns for each client
        ``counted``, or the reason that its notice gave.
        """
        # Most of its time must be left, whatever the machine has to do besides.
        event = self.clients[0].opened(
            after=self.last, fresh_s=COLLECT_S / 2, timeout_s=COLLECT_S
        )
        self.last = event.attempt

        def act(number: int) -> None:
            what, client = acts.get(number, rest), self.clients[number]
            if isinstance(what, np.ndarray):
                client.submit(event, what)
            else:
                what(client, event)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(act, range(len(self.clients))))
        ends = [client.over(event.attempt, COLLECT_S) for client in self.clients]
        assert all(over.counted == (over.rejection == "") for over in ends)
        return event, [over.rejection or COUNTED for over in ends]


@contextmanager
def training(folder: Path, validation: str = "crypten") -> Iterator[Running]:
    changes = {
        "validation": validation,
        "privacy.client_clip": 32.0,
        "fractional_bits": 16,
    }
    # η over the denominator q·Σ p·|D| is 1: θ moves by the noisy sum itself.
    changes |= {"training.learning_rate": CLIENTS * 0.2, "training.rounds": 10_000}
    changes |= tasks.logistic(127) | {"deadlines.collect": COLLECT_S}
    with deployments(folder) as make:
        deployment = make(changes, CLIENTS)
        deployment.start_servers()
        with joined(deployment) as clients:
            yield Running(deployment, clients, deployment.task)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with training(tmp_path_factory.mktemp("running")) as made:
        yield made


@pytest.mark.parametrize("check", ["comparisons", "proof"])
def test_every_forged_vector_is_rejected_with_its_reason_and_honest_ones_count(
    check: str, running: Running, rng: np.random.Generator, tmp_path: Path
) -> None:
    with (
        training(tmp_path, check) if check == "proof" else nullcontext(running)
    ) as played:
        require_verdicts(played, rng)


def require_verdicts(running: Running, rng: np.random.Generator) -> None:
    d, beta = running.task.dimension, running.task.mechanism.bound
    spread = np.full(d, beta // 16)
    assert fixed_point.squared_norm(spread) == beta * beta
    rejected = [
        *wrapping(d),
        *too_long(d, beta),
        # 2^48 is a root of −1 modulo p, so this has a squared norm of 0 there; p/2 and
        # p/3 wrap.
        unit(d, 2**48) + unit(d, 1, at=1),
        unit(d, proof_shape.P // 2),
        unit(d, proof_shape.P // 2) + unit(d, -(proof_shape.P // 2), at=5),
        unit(d, proof_shape.P // 3) + unit(d, -(proof_shape.P // 3), at=5),
        unit(d, 16 * beta),
        np.full(d, 69 * beta // math.isqrt(d), dtype=np.int64),
        # All 64: tests/integration/validation.
        *(multiple(d, i, rng) for i in (0, 1, 7, 8, 15, 16, 31, 32, 33, 48, 62, 63)),
    ]
    accepted = [unit(d, value) for value in (0, 1, -1, beta)]
    accepted += [unit(d, -beta, at=d - 1), spread, -spread]
    accepted += [honest(running.task, rng) for _ in range(15)]
    cases = [(x, NORM_EXCEEDED) for x in rejected] + [(x, COUNTED) for x in accepted]
    order = rng.permutation(len(cases)).tolist()
    wrong = []
    for start in range(0, len(cases), CLIENTS):
        part = order[start : start + CLIENTS]
        # Honest clients beside them always count.
        expected = [cases[i][1] for i in part] + [COUNTED] * (CLIENTS - len(part))
        acts = {number: cases[i][0] for number, i in enumerate(part)}
        _, ended = running.play(acts, spread)
        wrong += [
            (part[n : n + 1], got) for n, got in enumerate(ended) if got != expected[n]
        ]
    assert not wrong


def stand_at(operators: Iterable[OperatorConnection], version: int) -> bool:
    return {each.status().version for each in operators} == {version}


def test_servers_find_what_one_process_finds(
    running: Running, rng: np.random.Generator
) -> None:
    """The processes do what `run_round` does: the same set, the same sum but for the
    noise."""
    task, names, rounds = running.task, running.deployment.clients, 3
    forged = (2**32, 2 * task.mechanism.bound, -(2**63))
    roster = Roster(
        {name: Enrolment(name, 1, task.privacy.record_rate) for name in names}
    )
    # η over the fixed denominator is 1, so that the model's steps are the sums
    # themselves.
    assert (
        task.training.learning_rate / task.mechanism.denominator(roster.values()) == 1.0
    )
    operators = {role: running.deployment.operator(Role(role)) for role in SERVERS}
    holders = roster.seed_holders(task.digest)
    residuals = []
    for _ in range(rounds):
        # Mostly honest updates of every size, and three that don't count.
        updates = [honest(task, rng) for _ in names]
        for number, value in zip(rng.permutation(CLIENTS)[:3], forged, strict=True):
            updates[number] = unit(
                task.dimension, value, at=int(rng.integers(task.dimension))
            )
        event, outcome = running.play(dict(enumerate(updates)), updates[0])
        # One may be a moment behind the other, whose event ends a round for the
        # clients.
        following = partial(stand_at, operators.values(), event.version + 1)
        waiting.until(following, "the next model")
        theta = operators["server-a"].model(task, event.version)
        after = operators["server-a"].model(task, event.version + 1)
        (digest,) = {
            each.model_digest(task, event.version + 1) for each in operators.values()
        }
        for role in map(Role, SERVERS):
            servers = next(
                c.servers for c in running.clients if holders[c.servers.client] is role
            )
            assert servers.serves_first is role
            fetched = servers.fetch_model(event.version + 1, Digest(digest.value))
            assert np.array_equal(fetched, after)

        sent = dict(zip(names, updates, strict=True))
        oracle, other = play_round(
            task,
            sent,
            roster=roster,
            theta=theta,
            attempt=event.version,
            noise=no_noise,
        )
        assert (oracle.opened.model, oracle.valid) == (event.model, other.valid)
        expected = {c: reason.value for c, reason in oracle.rejections.items()}
        assert (len(expected), expected.keys() & set(oracle.valid)) == (3, set())
        expected |= dict.fromkeys(oracle.valid, COUNTED)
        assert dict(zip(names, outcome, strict=True)) == expected
        plain = sum(
            x for name, x in zip(names, updates, strict=True) if name in oracle.valid
        )
        assert np.array_equal(oracle.noisy_sum, plain)
        # In units of the last place, as float32 keeps it.
        moved = np.ldexp(after.astype(np.float64) - theta, task.fractional_bits)
        residuals.append(np.rint(moved) - oracle.noisy_sum)

    noise = np.concatenate(residuals)
    deviation = task.mechanism.noise_units * math.sqrt(2)
    assert np.abs(noise).max() < 12 * deviation
    assert abs(noise.mean()) < 5 * deviation / math.sqrt(noise.size)
    # Five standard errors of the variance: one server's noise alone would give half of
    # it.
    assert abs(noise.var() / deviation**2 - 1) < 5 * math.sqrt(2 / noise.size)
    for name, operator in operators.items():
        served = operator.status().bytes_by_link[f"{name} to clients"]
        assert served > 0, "one server alone serves models"
    # Fresh noise each round.
    assert len({residual.tobytes() for residual in residuals}) == rounds


@pytest.mark.parametrize("place", [Role.SERVER_A, Role.SERVER_B, Role.DEALER])
def test_every_part_refuses_another_wire_version_of_whoever_may_call(
    running: Running, place: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first version said nothing.
    monkeypatch.setattr(mutual_tls, "USER_AGENT", (mutual_tls.USER_AGENT[0], "precad"))
    caller, method = "ward-00", "Aggregation/Describe"
    if place is Role.DEALER:
        caller, method = "server-a", "Dealing/Join"
    identity = credentials.Identity.load(running.deployment.folder / "keys" / caller)
    with open_channel(
        running.deployment.addresses[place.value], identity, place
    ) as channel:
        call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            f"/precad.v1.{method}"
        )
        named = "server A" if place is Role.DEALER else f"client {caller}"
        with pytest.raises(
            grpc.RpcError, match=f"{named} speaks wire version 1, "
        ) as refused:
            call(b"", timeout=waiting.DEADLINE_S)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize("server", ["a", "b"])
def test_status_is_one_json_document_of_what_the_server_did_and_fits_a_narrow_terminal(
    running: Running, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zero = np.zeros(running.task.dimension, dtype=np.int64)
    running.play({3: unit(running.task.dimension, 2**32)}, zero)
    address = running.deployment.addresses[f"server-{server}"]
    identity = running.deployment.folder / "keys" / "operator"
    status = partial(
        precad, "status", address, "--server", server, "--identity", identity
    )
    asked = status("--json")
    assert (asked.exit_code, asked.stderr, asked.stdout.count("\n")) == (0, "", 1)
    facts = json.loads(asked.stdout)
    digest = str(running.task.digest)
    expected = {
        "role": f"server-{server}",
        "task": running.task.name,
        "task_digest": digest,
    }
    expected |= {"phase": "training", "error": "", "kernel": kernel.kernel_in_use()}
    numbers = {"enrolled": CLIENTS, "rounds": running.task.training.rounds}
    numbers |= {"redrawn_coins": 0, "workers": 0}
    assert (expected | numbers).items() <= facts.items()
    assert 1 <= facts["version"] < facts["rounds"]
    assert len(facts["model_digest"]) == 64
    assert facts["rejected"][NORM_EXCEEDED] >= 1
    assert facts["participations"]["ward-00"] >= 1
    assert sum(facts["bytes"].values()) > 0

    table = status()
    assert table.exit_code == 0
    for words in ("task digest", digest, NORM_EXCEEDED, "ward-00", "training"):
        assert words in table.stdout

    seen: list[tuple[Document, float]] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            operate, "follow", lambda _, ask, every: seen.append((ask(), every))
        )
        assert status("--watch", "--every", "0.5").exit_code == 0
    ((now, every),) = seen
    monkeypatch.setenv("COLUMNS", "44")
    screen, answers = terminal.Terminal(), iter([now, now | {"phase": "done"}])
    operate.follow(screen, lambda: next(answers), every, clock.LeapingClock())
    lines = screen.screen()
    # Drawn over itself, and no line is broken into two; the bar is whole.
    assert (len(lines), lines[2]) == (7, "━" * 44)
    assert max(map(len, lines)) <= 44
    assert f"{CLIENTS} owners enrolled" in screen.getvalue()
