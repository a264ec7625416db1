"""The servers' part of a simulation, functions that replace parts of it, and attacks.

Its randomness is the real samplers', on streams that a seed repeats. Seeds exist here
and in tests alone: a server and an owner draw from the operating system. Vectors that
bad clients submit go through the honest client's sharing and commitments, so that
nothing but the validation stands between them and the model. How to write an attack of
your own: docs/simulate.md.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Protocol

import numpy as np

from precad.accounting import cap_of
from precad.aggregator.noise import server_noise
from precad.client.gradients import poisson_sample
from precad.common import (
    SERVERS,
    Floats,
    Floats32,
    Integers,
    Keystream,
    Misconfiguration,
    ModelVector,
    Rejection,
    RingVector,
    Role,
    Secret,
    Task,
    apply_update,
    clip_update,
    derive,
    fixed_point,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    squared_norm,
)
from precad.simulation.result import SimulatedRound
from precad.simulation.virtual_owners import (
    Answering,
    Drawn,
    Matrix,
    Owner,
    Owners,
    PerClient,
    Stacked,
)

SEEDS = 2**63
"""Seeds are whole numbers from 0 to below this one."""


@frozen_kw_only_dataclass
class View:
    """A round as an attack or another rule of aggregation sees it."""

    task: Task
    version: int
    """t, from 0."""
    theta: Floats = field(repr=False)
    """θ_t, ``[d]``; read-only."""
    clients: tuple[str, ...]
    """The client of each row that the function is given."""
    bounds: tuple[int, ...]
    """β_i of each row's client: longest update, in units, that counts."""
    others: Matrix = field(repr=False)
    """The other clients' honest updates, ``[any, d]``: more than a real attacker knows.
    Without rows where an aggregation is called."""
    generator: np.random.Generator = field(repr=False)
    """A generator seeded by the simulation's seed and the round."""

    def decode(self, units: Matrix) -> Floats:
        """Return units of the last place as real numbers, in the same shape."""
        return fixed_point.decode(units, self.task.fractional_bits)

    def encode(self, real: Floats) -> Matrix:
        """Return real numbers in units of the last place, toward zero, any shape.

        Raises Misconfiguration: a number isn't finite, or too large.
        """
        return fixed_point.encode(real, self.task.fractional_bits)


Attack = Callable[[Matrix, View], Matrix]
"""Takes the bad clients' honest updates ``[k, d]``; returns what they submit, ``[k, d]
int64``."""
Aggregate = Callable[[Matrix, View], Integers | Floats]
"""Takes the valid updates ``[m, d]``; returns what takes the place of their sum,
``[d]``, in units of the last place."""
Sampler = Callable[[int, str, int, float], Integers]
"""Takes the version, the client, its number of records and p; returns the indices of
the drawn records, ``[any]``."""
Cohort = Callable[[int, tuple[str, ...], float], Iterable[str]]
"""Takes the version, all clients and q; returns the clients that are drawn."""
Absent = Callable[[int, tuple[str, ...]], Iterable[str]]
"""Takes the version and the drawn clients; returns those that submit nothing."""
Noise = Callable[[Role, int, int], RingVector]
"""Takes the server, the version and d; returns that server's noise, ``[d] int64``, in
units of the last place."""
_ViewOf = Callable[[Sequence[str], Matrix], View]
"""Takes the clients of a function's rows, and the other clients' updates."""


class Forgery(Enum):
    """What a bad client submits; the range test rejects all of these but OVERSIZE."""

    WRAPAROUND = "wraparound"
    """Multiples of 2^32: huge, but their square is 0 in Z_2^64. The paper's check
    accepts it."""
    OVERSIZE = "oversize"
    """The honest direction at norm 2β: short enough for the range test, rejected by the
    test of the norm."""
    GARBAGE = "garbage"
    """Uniform ring elements."""


def forged_update(kind: Forgery, task: Task, honest: RingVector) -> RingVector:
    """Return what a bad client submits in place of ``honest``; both are ``[d] int64``.

    Its norm over the integers is above β.
    """
    if kind is not Forgery.OVERSIZE:
        words = Keystream(Secret.random(), "forged-update").words(honest.size)
        if kind is Forgery.GARBAGE:
            return words
        signs = 2 * (words & 1) - 1
        return signs << 32
    bound = task.mechanism.bound
    if honest.any():
        factor = 2.0 * bound / math.sqrt(squared_norm(honest))
        scaled = np.asarray(np.rint(honest * factor).astype(np.int64))
        if squared_norm(scaled) > bound**2:
            return scaled
    # A zero vector has no direction.
    single = np.zeros_like(honest)
    single[0] = 2 * bound
    return single


def flip(updates: Matrix, view: View) -> Matrix:
    """Submit minus the mean of the cohort's honest updates, at the bound's length.

    An ``Attack``: bad clients submit one direction, as long as their bounds allow.
    """
    mean = np.concatenate([view.others, updates]).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length == 0:
        return updates
    rows = []
    for bound in view.bounds:
        oversize = np.rint(-mean / length * 2 * bound).astype(np.int64)
        rows.append(clip_update(oversize, bound, view.task.fractional_bits))
    return np.array(rows)


def _forge(kind: Forgery, updates: Matrix, view: View) -> Matrix:
    """Submit a forgery for each bad client; an ``Attack`` once its kind is set."""
    return np.array([forged_update(kind, view.task, update) for update in updates])


NAMED: dict[str, Attack] = {
    "flip": flip,
    **{kind.value: partial(_forge, kind) for kind in Forgery},
}
"""Attacks by name."""


@frozen_dataclass
class State:
    """All that a simulation's next round depends on."""

    theta: Floats32
    """θ_t, ``[d]``."""
    taken: Counter[str]
    """T_i by client: how many of its updates counted so far."""
    history: list[SimulatedRound]
    """Rounds 1 to t."""


class Checkpoint(Protocol):
    """Keeps a simulation's state, so that one that was broken off goes on."""

    def keep_state(
        self,
        what: Mapping[str, object],
        state: State,
        rounds: int,
    ) -> None:
        """Keep the state after one of ``rounds`` rounds.

        ``what`` says what is simulated, as plain values.
        """

    def found_state(self, what: Mapping[str, object], start: State) -> State:
        """Return the state that was kept of this simulation; ``start`` without one."""


def checked_seed(seed: int | None) -> int:
    """Return the seed, or a fresh one where none is given.

    Raises Misconfiguration: it isn't a whole number from 0 to below 2^63.
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise Misconfiguration("seed", seed, "give a whole number from 0 to below 2^63")
    return seed


class Draws:
    """All that is drawn at random in a simulation; the same for the same seed.

    That is who is drawn, which records, and both servers' noise.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._seed = seed
        self._key = Secret(seed.to_bytes(32, "little"))
        # Version and server whose noise is drawn.
        self._noise_context: tuple[bytes | int, ...] = ()
        self._gaussian = server_noise(
            task.mechanism,
            lambda: self._stream("noise", *self._noise_context),
        )

    def cohort(
        self,
        version: int,
        clients: tuple[str, ...],
        rate: float,
    ) -> tuple[str, ...]:
        """Draw each client with probability q = ``rate``; a ``Cohort``.

        It is exact to 2^−64, as the servers' coin.
        """
        drawn = poisson_sample(len(clients), rate, self._stream("cohort", version))
        return tuple(clients[place] for place in drawn)

    def sample(
        self,
        version: int,
        client: str,
        count: int,
        rate: float,
    ) -> Integers:
        """Draw an owner's Poisson sample of its units; a ``Sampler``.

        The owner's own code draws each of ``count`` units with p = ``rate``.
        """
        randomness = self._stream("records", version, client.encode())
        return poisson_sample(count, rate, randomness)

    def of_units(self, version: int, client: str) -> Keystream:
        """Return the stream that draws which records of a sampled unit count."""
        return self._stream("unit-records", version, client.encode())

    def copies(self, version: int, client: str) -> Secret:
        """Return the key of the noise of an owner's copies of its records."""
        return derive(self._key, "simulated-copies", version, client.encode())

    def noise(self, server: Role, version: int, dimension: int) -> RingVector:
        """Draw a server's discrete Gaussian noise, ``[d] int64``; a ``Noise``.

        The server's own sampler draws it.
        """
        self._noise_context = (version, server.value.encode())
        return self._gaussian.draw(dimension)

    def generator(self, version: int) -> np.random.Generator:
        """Return the generator of a round for an attack or another aggregation."""
        return np.random.default_rng([self._seed, version])

    def _stream(self, purpose: str, *context: bytes | int) -> Keystream:
        """Return the stream of one purpose, such as a client's sample in a version."""
        return Keystream(self._key, f"simulated-{purpose}", *context)


_BLOCK_BYTES = 2**28
"""Bytes of updates that are held at once, where neither attack nor aggregation needs
all."""
_WORD = 8
"""Bytes of one element of an update."""


@dataclass(slots=True, kw_only=True)
class Rounds:
    """The rounds of one training.

    Fields are as ``simulate`` takes them; where it was given none, they hold the
    protocol's own function.
    """

    task: Task
    owners: Owners
    draws: Draws
    honest: PerClient | Stacked | Answering
    """What computes honest owners' updates."""
    attack: Attack | None
    bad: frozenset[str]
    """Names of the bad clients."""
    absent: Absent | None
    aggregate: Aggregate | None
    sampler: Sampler
    cohort: Cohort
    noise: Noise
    taken: Counter[str]
    """How many updates of each client counted so far, T_i."""
    cap: int = field(init=False)
    """How often a client may be counted."""
    denominator: float = field(init=False)
    """What the sum of updates is divided by."""

    def __post_init__(self) -> None:
        self.cap = cap_of(self.task)
        roster = self.owners.roster(self.task)
        self.denominator = self.task.mechanism.denominator(roster.values())

    def play(
        self, version: int, theta: ModelVector
    ) -> tuple[ModelVector, SimulatedRound]:
        """Play one round; return θ_{t+1}, ``[d] float32``, and what happened in it.

        ``theta`` is θ_t. Raises Misconfiguration: one of the functions gave something
        else than its type says.
        """
        mechanism = self.task.mechanism
        clients = tuple(self.owners)
        chosen = self.cohort(version, clients, mechanism.owner_rate)
        drawn = self._names_given("cohort", chosen, clients)
        cohort = [client for client in drawn if self.taken[client] < self.cap]
        silent = self.absent(version, tuple(cohort)) if self.absent else ()
        absent = set(self._names_given("absent", silent, cohort))
        present = [client for client in cohort if client not in absent]
        total = np.zeros(mechanism.dimension, dtype=np.int64)
        view_of = partial(self._view, version, theta)
        accepted = []
        failed_before = self.honest.failed
        records = 0
        # An attack or an aggregation is to see all updates. Without clients there is
        # one empty block.
        size = held = max(1, len(present))
        if self.attack is None and self.aggregate is None:
            size = max(1, _BLOCK_BYTES // (_WORD * mechanism.dimension))
        for start in range(0, held, size):
            block = present[start : start + size]
            samples = [self._sample(version, self.owners[client]) for client in block]
            records += sum(len(sample.indices) for sample in samples)
            honest = self.honest.updates(theta, samples)
            updates = self._attacked(honest, block, view_of)
            valid = np.array(
                [
                    squared_norm(row) <= self.owners[client].bound ** 2
                    for client, row in zip(block, updates, strict=True)
                ],
                dtype=bool,
            )
            counted = [
                client for client, good in zip(block, valid, strict=True) if good
            ]
            updates = updates[valid]
            if self.aggregate is None:
                total += updates.sum(axis=0, dtype=np.int64)
            else:
                combined = self.aggregate(updates, view_of(counted, updates[:0]))
                total += self._vector("aggregate", combined)
            accepted += counted
        for server in SERVERS:
            noise = self.noise(server, version, mechanism.dimension)
            total += self._vector("noise", noise)
        self.taken.update(accepted)
        rejected = {
            Rejection.ABSENT.value: len(absent),
            Rejection.NORM_EXCEEDED.value: len(present) - len(accepted),
        }
        played = SimulatedRound(
            number=version + 1,
            cohort=len(cohort),
            accepted=len(accepted),
            rejected={reason: count for reason, count in rejected.items() if count},
            records=records,
            failed=self.honest.failed - failed_before,
            participations=max(self.taken.values(), default=0),
        )
        return apply_update(theta, total, self.task, self.denominator), played

    def _sample(self, version: int, owner: Owner) -> Drawn:
        """Sample an owner's units. Raises Misconfiguration: an index isn't one."""
        mechanism = self.task.mechanism
        count = owner.records.unit_count
        name = owner.name
        sampled = self.sampler(version, name, count, mechanism.unit_rate)
        indices = np.asarray(sampled)
        if not indices.size:
            indices = np.empty(0, np.int64)
        whole = indices.ndim == 1 and np.issubdtype(indices.dtype, np.integer)
        if not whole or indices.min(initial=0) < 0 or indices.max(initial=0) >= count:
            unit = mechanism.claimed
            remedy = f"must give indices of the {count} {unit.plural} of {name}"
            raise Misconfiguration("sampler", sampled, remedy)
        records, sizes = owner.records.draw(
            indices.astype(np.int64),
            mechanism.most_records_per_unit,
            self.draws.of_units(version, name),
        )
        return Drawn(
            owner=owner,
            indices=records,
            copies=self.draws.copies(version, name),
            sizes=sizes,
        )

    def _attacked(
        self,
        updates: Matrix,
        clients: list[str],
        view_of: _ViewOf,
    ) -> Matrix:
        """Replace the updates of bad clients by what the attack submits.

        ``updates`` are ``[clients, d]``; they are changed and returned. Raises
        Misconfiguration: the attack gave another shape or type.
        """
        bad = [client for client in clients if client in self.bad]
        if self.attack is None or not bad:
            return updates
        is_bad = np.array([client in self.bad for client in clients], dtype=bool)
        honest = updates[is_bad]
        submitted = np.asarray(
            self.attack(honest.copy(), view_of(bad, updates[~is_bad]))
        )
        if submitted.shape != honest.shape or submitted.dtype != np.int64:
            remedy = (
                f"must give int64{list(honest.shape)}, units of the last place:"
                " view.encode(real)"
            )
            raise Misconfiguration(
                "attack", f"{submitted.dtype}{list(submitted.shape)}", remedy
            )
        updates[is_bad] = submitted
        return updates

    def _vector(self, function: str, result: object) -> RingVector:
        """Return what a function gave as ring elements, ``[d]``; real numbers rounded.

        Raises Misconfiguration: it isn't ``[d]`` numbers, or they are too large.
        """
        vector = np.asarray(result)
        if vector.shape == (self.task.dimension,):
            if np.issubdtype(vector.dtype, np.integer):
                return vector.astype(np.int64)
            real = np.issubdtype(vector.dtype, np.floating)
            if real and (np.abs(vector) < 2.0**62).all():
                return np.asarray(np.rint(vector).astype(np.int64))
        remedy = (
            f"must give [{self.task.dimension}] finite numbers, in units of the last"
            " place"
        )
        raise Misconfiguration(function, f"{vector.dtype}{list(vector.shape)}", remedy)

    def _view(
        self,
        version: int,
        theta: ModelVector,
        clients: Sequence[str],
        others: Matrix,
    ) -> View:
        """Return the round as a function sees it that is given these clients' rows."""
        readable = theta.astype(np.float64)
        readable.flags.writeable = False
        return View(
            task=self.task,
            version=version,
            theta=readable,
            clients=tuple(clients),
            bounds=tuple(self.owners[client].bound for client in clients),
            others=others,
            generator=self.draws.generator(version),
        )

    def _names_given(
        self,
        function: str,
        names: Iterable[str],
        allowed: Collection[str],
    ) -> tuple[str, ...]:
        """Return the names that a function gave, each once.

        They are in the order of ``allowed``. Raises Misconfiguration: one isn't in it.
        """
        chosen = set(names)
        strangers = sorted(map(str, chosen - set(allowed)))
        if strangers:
            raise Misconfiguration(
                function, strangers[:3], "must be of the clients that it was given"
            )
        return tuple(name for name in allowed if name in chosen)
