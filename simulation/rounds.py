"""The servers' part of a simulation, what its replaceable functions see, and attacks by name.

Its randomness is the real samplers' on streams that a seed repeats. Seeds exist here
and in tests alone: a server and an owner draw from the operating system. Vectors that
bad clients submit go through the honest client's sharing and commitments, so that
nothing but the validation stands between them and the model. An attack of your own:
docs/simulate.md.
"""

import math
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from precad.accounting.guarantees import cap_of
from precad.aggregator.noise import server_noise
from precad.client.gradients.local_update import poisson_sample
from precad.common import fixed_point
from precad.common.errors import Misconfiguration, Rejection
from precad.common.fixed_point import clip_update, squared_norm
from precad.common.identifiers import Role, Secret
from precad.common.model import ModelVector, apply_update
from precad.common.ring import Keystream, RingVector, derive
from precad.common.task import Task
from precad.simulation.local_training import LocallyTrained
from precad.simulation.result import SimulatedRound
from precad.simulation.virtual_owners import (
    Drawn,
    Matrix,
    Owner,
    Owners,
    PerClient,
    Stacked,
)

SEEDS = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A round as an attack or another rule of aggregation sees it."""

    task: Task
    version: int
    """t, from 0."""
    theta: NDArray[np.float64] = field(repr=False)
    """θ_t, ``[d]``; read-only."""
    clients: tuple[str, ...]
    """Of each row that the function is given."""
    others: Matrix = field(repr=False)
    """The other clients' honest updates, ``[any, d]``: more than a real attacker knows.
    Without rows where an aggregation is called."""
    generator: np.random.Generator = field(repr=False)
    """Seeded by the simulation's seed and the round."""

    def decode(self, units: Matrix) -> NDArray[np.float64]:
        """Units of the last place as real numbers, any shape."""
        return fixed_point.decode(units, self.task.fractional_bits)

    def encode(self, real: NDArray[np.float64]) -> Matrix:
        """Real numbers in units of the last place, toward zero, any shape."""
        return fixed_point.encode(real, self.task.fractional_bits)


Attack = Callable[[Matrix, View], Matrix]
"""The bad clients' honest updates ``[k, d]`` in, what they submit ``[k, d] int64`` out.
"""
Aggregate = Callable[[Matrix, View], NDArray[np.int64] | NDArray[np.float64]]
"""The valid updates ``[m, d]`` in; what takes the place of their sum out, ``[d]``, in
units."""
Sampler = Callable[[int, str, int, float], NDArray[np.int64]]
"""Version, client, its number of records and p in; the drawn records' indices out."""
Cohort = Callable[[int, tuple[str, ...], float], Iterable[str]]
"""Version, all clients and q in; who is drawn out."""
Absent = Callable[[int, tuple[str, ...]], Iterable[str]]
"""Version and who is drawn in; who of them submits nothing out."""
Noise = Callable[[Role, int, int], RingVector]
"""Server, version and d in; that server's noise out, ``[d] int64``, in units."""


class Forgery(Enum):
    """What a bad client puts in its update's place; the range test rejects all but oversize."""

    WRAPAROUND = "wraparound"
    """Multiples of 2^32: huge, but their square is 0 in Z_2^64. The paper's check
    accepts it."""
    OVERSIZE = "oversize"
    """The honest direction at norm 2β: short enough for the range test, rejected by the
    norm."""
    GARBAGE = "garbage"
    """Uniform ring elements."""


def forged_update(kind: Forgery, task: Task, honest: RingVector) -> RingVector:
    """What it submits in place of ``honest``, ``[d]``: of a norm over the integers above β."""
    if kind is not Forgery.OVERSIZE:
        words = Keystream(Secret.random(), "forged-update").words(honest.size)
        return words if kind is Forgery.GARBAGE else (2 * (words & 1) - 1) << 32
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
    """Against the cohort: minus the mean of its honest updates, as long as the bound allows."""
    mean = np.concatenate([view.others, updates]).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length == 0:
        return updates
    bound = view.task.mechanism.bound
    longest = np.rint(-mean / length * 2 * bound).astype(np.int64)
    row = clip_update(longest, bound, view.task.fractional_bits)
    return np.tile(row, (len(updates), 1))


def _forge(kind: Forgery, updates: Matrix, view: View) -> Matrix:
    return np.array([forged_update(kind, view.task, update) for update in updates])


NAMED: dict[str, Attack] = {
    "flip": flip,
    **{kind.value: partial(_forge, kind) for kind in Forgery},
}


@dataclass(frozen=True, slots=True)
class State:
    """What a simulation's next round depends on: θ_t ``[d]``, T_i by client, rounds 1 to t."""

    theta: NDArray[np.float32]
    taken: Counter[str]
    history: list[SimulatedRound]


class Checkpoint(Protocol):
    """Keeps a simulation's state, so that one that was broken off goes on."""

    def keep_state(self, what: Mapping[str, Any], state: State, rounds: int) -> None:
        """Keep it after a round; ``what`` is simulated, as plain values."""

    def found_state(self, what: Mapping[str, Any], start: State) -> State:
        """What was kept of this simulation; else the start."""


def checked_seed(seed: int | None) -> int:
    """The seed, or a fresh one.

    Raises Misconfiguration: it isn't from 0 to below 2^63.
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise Misconfiguration("seed", seed, "give a whole number from 0 to below 2^63")
    return seed


class Draws:
    """Who is drawn, which records, and both servers' noise; the same for the same seed."""

    def __init__(self, task: Task, seed: int) -> None:
        self._seed = seed
        self._key = Secret(seed.to_bytes(32, "little"))
        self._noise_at: tuple[bytes | int, ...] = ()
        self._gaussian = server_noise(
            task.mechanism, lambda: self._stream("noise", *self._noise_at)
        )

    def cohort(
        self, version: int, clients: tuple[str, ...], rate: float
    ) -> tuple[str, ...]:
        """Each client with probability q, exact to 2^−64, as the servers' coin does."""
        threshold = int(Fraction(rate) * 2**64)
        words = (
            self._stream("cohort", version).words(len(clients)).view(np.uint64).tolist()
        )
        return tuple(
            who for who, word in zip(clients, words, strict=True) if word < threshold
        )

    def sample(
        self,
        version: int,
        client: str,
        count: int,
        rate: float,
    ) -> NDArray[np.int64]:
        """An owner's Poisson sample of its records, by the owner's own code."""
        return poisson_sample(
            count, rate, self._stream("records", version, client.encode())
        )

    def copies(self, version: int, client: str) -> Secret:
        """The key of the noise of an owner's copies of its records."""
        return derive(self._key, "simulated-copies", version, client.encode())

    def noise(self, server: Role, version: int, dimension: int) -> RingVector:
        """A server's discrete Gaussian noise, by the server's own sampler."""
        self._noise_at = (version, server.value.encode())
        return self._gaussian.draw(dimension)

    def generator(self, version: int) -> np.random.Generator:
        """For an attack or another aggregation."""
        return np.random.default_rng([self._seed, version])

    def _stream(self, purpose: str, *context: bytes | int) -> Keystream:
        return Keystream(self._key, f"simulated-{purpose}", *context)


_BLOCK_BYTES = 2**28
"""Updates that are held at once, where neither attack nor aggregation needs all."""
_WORD = 8


@dataclass(slots=True, kw_only=True)
class Rounds:
    """One training's rounds; every field as in `simulate`, with the protocol's own filled in."""

    task: Task
    owners: Owners
    draws: Draws
    honest: PerClient | Stacked | LocallyTrained
    attack: Attack | None
    bad: frozenset[str]
    absent: Absent
    aggregate: Aggregate | None
    sampler: Sampler
    cohort: Cohort
    noise: Noise
    taken: Counter[str]
    """How many updates of each client counted so far, T_i."""
    cap: int = field(init=False)
    """How often a client may be counted."""
    denominator: float = field(init=False)

    def __post_init__(self) -> None:
        self.cap = cap_of(self.task)
        roster = self.owners.roster(self.task)
        self.denominator = self.task.mechanism.denominator(roster.values())

    def play(
        self, version: int, theta: ModelVector
    ) -> tuple[ModelVector, dict[str, Any]]:
        """θ_{t+1}, ``[d] float32``, and what there is to say of the round."""
        mechanism = self.task.mechanism
        names = tuple(self.owners)
        drawn = self._known(
            "cohort", self.cohort(version, names, mechanism.owner_rate), names
        )
        within = [name for name in drawn if self.taken[name] < self.cap]
        away = set(self._known("absent", self.absent(version, tuple(within)), within))
        present = [name for name in within if name not in away]
        rejected = Counter({Rejection.ABSENT.value: len(away)} if away else {})
        total = np.zeros(mechanism.dimension, dtype=np.int64)
        view = partial(self._view, version, theta)
        accepted: list[str] = []
        failed = self.honest.failed
        records = 0
        for block in self._blocks(present):
            samples = [self._drawn(version, self.owners[name]) for name in block]
            records += sum(len(each.indices) for each in samples)
            updates = self._attacked(self.honest.updates(theta, samples), block, view)
            valid = [squared_norm(row) <= mechanism.bound**2 for row in updates]
            counted = [name for name, good in zip(block, valid, strict=True) if good]
            total += self._combined(updates[np.array(valid, bool)], counted, view)
            accepted += counted
        over = len(present) - len(accepted)
        if over:
            rejected[Rejection.NORM_EXCEEDED.value] = over
        for server in (Role.SERVER_A, Role.SERVER_B):
            noise = self.noise(server, version, mechanism.dimension)
            total += self._vector("noise", noise)
        self.taken.update(accepted)
        return apply_update(theta, total, self.task, self.denominator), {
            "cohort": len(within),
            "accepted": len(accepted),
            "rejected": dict(rejected),
            "records": records,
            "failed": self.honest.failed - failed,
            "participations": max(self.taken.values(), default=0),
        }

    def _blocks(self, present: list[str]) -> Iterable[list[str]]:
        """Clients whose updates are held at once; all where a function is to see all."""
        size = len(present)
        if self.attack is None and self.aggregate is None:
            size = max(1, _BLOCK_BYTES // (_WORD * self.task.dimension))
        if not present:
            return [[]]
        return [present[start : start + size] for start in range(0, len(present), size)]

    def _drawn(self, version: int, owner: Owner) -> Drawn:
        count = len(owner.records)
        name = owner.name
        drawn = self.sampler(version, name, count, self.task.mechanism.unit_rate)
        indices = np.asarray(drawn)
        if not indices.size:
            indices = np.empty(0, np.int64)
        whole = indices.ndim == 1 and np.issubdtype(indices.dtype, np.integer)
        if not whole or indices.min(initial=0) < 0 or indices.max(initial=0) >= count:
            remedy = f"must give indices of the {count} records of {name}"
            raise Misconfiguration("sampler", drawn, remedy)
        return Drawn(owner, indices.astype(np.int64), self.draws.copies(version, name))

    def _attacked(
        self, updates: Matrix, names: list[str], view: Callable[..., View]
    ) -> Matrix:
        """The cohort's updates with those of its bad clients replaced."""
        mine = np.array([name in self.bad for name in names], dtype=bool)
        if self.attack is None or not mine.any():
            return updates
        own = updates[mine]
        bad = [name for name in names if name in self.bad]
        found = np.asarray(self.attack(own.copy(), view(bad, updates[~mine])))
        if found.shape != own.shape or found.dtype != np.int64:
            remedy = (
                f"must give int64{list(own.shape)}, units of the last place:"
                " view.encode(real)"
            )
            raise Misconfiguration(
                "attack", f"{found.dtype}{list(found.shape)}", remedy
            )
        updates[mine] = found
        return updates

    def _combined(
        self, valid: Matrix, names: list[str], view: Callable[..., View]
    ) -> RingVector:
        if self.aggregate is None:
            return np.asarray(valid.sum(axis=0, dtype=np.int64))
        return self._vector("aggregate", self.aggregate(valid, view(names, valid[:0])))

    def _vector(self, field: str, found: Any) -> RingVector:
        """What a function gave, as ring elements; real numbers are rounded."""
        vector = np.asarray(found)
        if vector.shape == (self.task.dimension,):
            if np.issubdtype(vector.dtype, np.integer):
                return vector.astype(np.int64)
            if (
                np.issubdtype(vector.dtype, np.floating)
                and (np.abs(vector) < 2.0**62).all()
            ):
                return np.asarray(np.rint(vector).astype(np.int64))
        remedy = (
            f"must give [{self.task.dimension}] finite numbers, in units of the last"
            " place"
        )
        raise Misconfiguration(field, f"{vector.dtype}{list(vector.shape)}", remedy)

    def _view(
        self,
        version: int,
        theta: ModelVector,
        names: Sequence[str],
        others: Matrix,
    ) -> View:
        shown = theta.astype(np.float64)
        shown.flags.writeable = False
        return View(
            task=self.task,
            version=version,
            theta=shown,
            clients=tuple(names),
            others=others,
            generator=self.draws.generator(version),
        )

    def _known(
        self, field: str, found: Iterable[str], allowed: Collection[str]
    ) -> tuple[str, ...]:
        """The names that a function gave, in the order of the clients, each once."""
        chosen = set(found)
        strangers = sorted(map(str, chosen - set(allowed)))
        if strangers:
            raise Misconfiguration(
                field, strangers[:3], "must be of the clients that it was given"
            )
        return tuple(name for name in allowed if name in chosen)
