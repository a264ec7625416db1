"""Everything that a guarantee rests on is told by the task's mechanism, and by it alone.

Each place below states numbers: noise, headroom, caps, accounts, guarantees, the report,
`precad task show`. They are compared with numbers computed here by hand, for both kinds of
contribution; then each place alone is told another mechanism, of a third kind, and must
say that one's numbers.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np
import pytest
from benchmarks.readability import PACKAGE, ROOT
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm
from tests.conftest import small_task
from tests.rig import commands

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.guarantees import cap_of, planned_guarantees
from precad.aggregator.noise import server_noise
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.cli import planning, report_page
from precad.cli.task_description import sentences
from precad.client.own_account import OwnAccount
from precad.client.participation import TrainedModel
from precad.common import task as task_rules
from precad.common.mechanism import Claim, Contribution, Mechanism, ModelStep, Unit
from precad.common.model import apply_update, model_digest
from precad.common.task import Task
from precad.common.task_schema import Parameter

DELTA = 1e-5
D = 8
F = 20
Value: TypeAlias = float | int | str | tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What one release is, as this test says it."""

    unit: Unit
    unit_clip: float
    sensitivity: float
    """R'."""
    unit_rate: float
    """p."""
    owner_clip: float
    """C."""
    owner_rate: float
    """q, which a server sees: it amplifies nothing against one."""
    sigma: float
    releases: int
    """T."""
    learning_rate: float
    epsilon_limit: float
    weight: float = 0.0
    """What one owner of ten records adds to the denominator."""
    planned_units: int | None = None
    """N, which makes the denominator in place of that."""
    names: tuple[str, ...] = ("w",)

    def noise_units(self) -> float:
        return math.ldexp(self.sigma * self.sensitivity, F)

    def epsilon(self, participations: int) -> float:
        """ε of one unit against one server, whose own noise hides nothing from it."""
        return epsilon_by_hand(self.unit_rate, self.sigma, participations)

    def planned(self) -> int:
        """How often an owner's coin lets it take part, but for one training in 1,000."""
        return int(binom.ppf(0.999, self.releases, self.owner_rate))

    def epsilon_for_owners(self) -> float:
        """ε of one unit against other owners, with both servers' noise."""
        sigma = math.sqrt(2) * self.sigma
        rates = (self.unit_rate, sigma, self.releases, self.owner_rate)
        return epsilon_by_hand(*rates)

    def owner_epsilon(self) -> float:
        """ε of a whole owner, with both servers' noise against C."""
        sigma = math.sqrt(2) * self.sigma * self.sensitivity / self.owner_clip
        return epsilon_by_hand(1.0, sigma, self.releases, self.owner_rate)

    def denominator(self) -> float:
        """Of three owners."""
        if self.planned_units is None:
            return 3 * self.weight
        return self.owner_rate * self.unit_rate * self.planned_units

    def cap(self, most: int) -> int:
        """How many participations keep ε within the limit."""
        counts = range(1, most + 1)
        return sum(self.epsilon(count) <= self.epsilon_limit for count in counts)


STEP = 2.0**-12
SIZE = 2**18
LOSSES = np.asarray(np.fft.fftfreq(SIZE, 1 / SIZE) * STEP, np.float64)
"""The grid of losses, in the order in which a Fourier transform has them."""


@cache
def transforms(
    rate: float, sigma: float, coin: float
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Transforms of one release's losses on the grid, in both directions."""
    x = np.linspace(-12 * sigma, 12 * sigma + 1, 400_001)
    absent = norm.pdf(x / sigma)
    present = (1 - rate) * absent + rate * norm.pdf((x - 1) / sigma)
    losses = np.log(present / absent)

    def transform(
        masses: NDArray[np.float64], losses: NDArray[np.float64]
    ) -> NDArray[np.complex128]:
        places = np.rint(losses / STEP).astype(np.int64) % SIZE
        one = coin * np.bincount(places, masses / masses.sum(), SIZE)
        one[0] += 1 - coin
        return np.fft.rfft(one)

    return transform(present, losses), transform(absent, -losses)


@cache
def epsilon_by_hand(rate: float, sigma: float, count: int, coin: float = 1.0) -> float:
    """ε at DELTA of so many Poisson-sampled Gaussians, the larger of both directions.

    Each is run where a coin that is seen says so, with probability ``coin``. For rate 1
    the sum is a Gaussian's (Balle and Wang 2018).
    """

    def of_gaussian(epsilon: float) -> float:
        mu = math.sqrt(count) / sigma
        by_p = float(norm.cdf(mu / 2 - epsilon / mu))
        by_q = float(norm.cdf(-mu / 2 - epsilon / mu))
        return by_p - math.exp(epsilon) * by_q - DELTA

    if rate == coin == 1:
        return float(brentq(of_gaussian, 0.0, 500.0))

    def of_grid(epsilon: float, masses: NDArray[np.float64]) -> float:
        above = epsilon < LOSSES
        return float(masses[above] @ -np.expm1(epsilon - LOSSES[above])) - DELTA

    return max(
        float(brentq(of_grid, 0.0, 30.0, args=(np.fft.irfft(one**count, SIZE),)))
        for one in transforms(rate, sigma, coin)
    )


RECORDS = Numbers(
    unit=Unit.RECORD,
    unit_clip=1.0,
    sensitivity=1 + math.sqrt(D) * 2**-20 + 2 * 2**-18,
    unit_rate=0.2,
    owner_clip=2.0,
    owner_rate=1.0,
    sigma=2.0,
    releases=10,
    learning_rate=0.5,
    epsilon_limit=1.3,
    weight=0.2 * 10,
)
OWNERS = Numbers(
    unit=Unit.OWNER,
    unit_clip=0.5,
    sensitivity=0.5,
    unit_rate=1.0,
    owner_clip=0.5,
    owner_rate=1.0,
    sigma=8.0,
    releases=10,
    learning_rate=0.5,
    epsilon_limit=1.2,
    weight=1.0,
)


def task_of(numbers: Numbers) -> Task:
    changes: dict[str, object] = {
        "privacy.record_clip": numbers.unit_clip,
        "privacy.client_clip": numbers.owner_clip,
        "privacy.record_rate": numbers.unit_rate,
        "privacy.client_rate": numbers.owner_rate,
        "privacy.noise_multiplier": numbers.sigma,
        "privacy.delta": DELTA,
        "privacy.epsilon_limit": numbers.epsilon_limit,
        "training.rounds": numbers.releases,
        "training.learning_rate": numbers.learning_rate,
    }
    if numbers.unit is Unit.OWNER:
        changes["local"] = {"epochs": 2, "learning_rate": 0.1}
    return small_task(D, changes)


@dataclass(frozen=True, kw_only=True)
class Third:
    """A contribution of a kind that no code knows: another sensitivity, another weight."""

    unit: Unit
    unit_rate: float
    unit_clip: float
    length: float
    weight: float
    most_records_per_unit: int | None = None

    def sensitivity(
        self, *, owner_clip: float, dimension: int, fractional_bits: int
    ) -> float:
        assert owner_clip > 0
        assert dimension == D
        assert fractional_bits == F
        return self.length

    def expected_units(self, claim: Claim) -> float:
        assert claim.records == 10
        return self.weight


def told(numbers: Numbers) -> Task:
    """A task of the same file, whose mechanism says these numbers."""
    task = task_of(RECORDS if numbers.unit is Unit.RECORD else OWNERS).model_copy()
    contribution = Third(
        unit=numbers.unit,
        unit_rate=numbers.unit_rate,
        unit_clip=numbers.unit_clip,
        length=numbers.sensitivity,
        weight=numbers.weight / numbers.owner_rate,
    )
    parameters = tuple(
        Parameter(name=name, shape=(D // len(numbers.names),)) for name in numbers.names
    )
    mechanism = replace(
        task.mechanism,
        contribution=cast("Contribution", contribution),
        step=ModelStep(learning_rate=numbers.learning_rate),
        parameters=parameters,
        owner_clip=numbers.owner_clip,
        owner_rate=numbers.owner_rate,
        noise_multiplier=numbers.sigma,
        releases=numbers.releases,
        planned_units=numbers.planned_units,
    )
    task.__dict__["mechanism"] = mechanism
    return task


CHANGES: dict[str, dict[str, object]] = {
    "sensitivity": {"sensitivity": 0.3},
    "noise": {"sigma": 9.0},
    "releases": {"releases": 4},
    "owner_clip": {"owner_clip": 1.25},
    "unit": {"unit_rate": 0.6, "unit_clip": 0.25},
    "weight": {"weight": 3.0},
    "plan": {"planned_units": 50},
    "step": {"learning_rate": 0.125},
    "names": {"names": ("a", "b")},
    "owner_rate": {"owner_rate": 0.25},
}


def changed(numbers: Numbers, change: str) -> Numbers:
    return replace(numbers, **CHANGES[change])  # type: ignore[arg-type]


@dataclass(frozen=True)
class Enrolled:
    records: int = 10
    record_rate: float = 0.2
    """Asked by a sample's gradients alone."""


def shown(task: Task) -> dict[str, float]:
    """What `precad task show --json` says, by adversary."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Task, "load", lambda _: task)
        document = commands.document("task", "show", __file__)
    statements = document["statements"]
    return {each["adversary"]: each["epsilon"] for each in statements}


def in_words(task: Task) -> str:
    """The sentence of `precad task show` on one curious server."""
    (sentence,) = (each for each in sentences(task) if "one curious server" in each)
    return sentence.partition("ε = ")[2].partition(" ")[0]


def in_a_model_file(task: Task) -> str:
    """ε in the sentence that a model's file of two rounds carries."""
    model = TrainedModel(
        task=task,
        version=2,
        theta=np.zeros(D, np.float32),
        digest=model_digest(
            task.digest, 2, task.mechanism.parameters, np.zeros(D, np.float32)
        ),
    )
    return model._guarantee()["guarantee"].partition("ε = ")[2].partition(",")[0]


def moved(task: Task) -> float:
    """By how much a released sum of 1 in every coordinate moves a model of three owners."""
    denominator = task.mechanism.denominator([Enrolled()] * 3)
    start = np.zeros(D, np.float32)
    total = np.full(D, 2**F, np.int64)
    return float(apply_update(start, total, task, denominator, None)[0])


def divisor(words: str) -> float:
    """What a sum is said to be divided by; 0 where the claims make it."""
    number, _, planned = words.partition(", as planned")
    return float(number.rpartition(" ")[2]) if planned else 0.0


def by_account(task: Task) -> float:
    account = OwnAccount(task, task.mechanism.unit_rate, None, None)
    for version in range(3):
        account.charge(version)
    return account.epsilon()


def rules(task: Task) -> tuple[float, ...]:
    """R, C, σ, q and p in the report's list; of whole owners neither R nor p."""
    symbols = ("(R)", "(C)", "(σ)", "(q)", "(p)")
    enforced = report_page.enforced(task)
    return (*(float(rule.value) for rule in enforced if rule.what.endswith(symbols)),)


def enforced_divisor(task: Task) -> float:
    (value,) = [
        rule.value for rule in report_page.enforced(task) if "divided" in rule.what
    ]
    return divisor(value)


def robust(task: Task) -> tuple[float, float]:
    """Rate and σ that certificates take for a whole owner, which both servers' noise hides."""
    event = Run.of(task).event(Adversary.CLIENT_LEVEL)
    return event.effective_noise_multiplier, planning.group_mu(task, 1)


def robust_by_hand(it: Numbers) -> tuple[float, float]:
    sigma = math.sqrt(2) * it.sigma * it.sensitivity / it.owner_clip
    # PRECAD Lemma 8: the coin is beyond the attackers' influence.
    whole = it.owner_rate * math.sqrt(it.releases * math.expm1(sigma**-2))
    return sigma, whole


Reading: TypeAlias = tuple[Callable[[Task], Value], Callable[[Numbers], Value]]
PLACES: dict[str, Reading] = {
    "noise": (
        lambda task: server_noise(task.mechanism).noise_units,
        lambda it: it.noise_units(),
    ),
    "headroom": (
        lambda task: str(task_rules._broken_headroom(task)),
        lambda it: "None" if it.noise_units() >= 1024 else "noise",
    ),
    "cap of a server": (
        lambda task: PrivacyCap(task).most(task.mechanism.unit_rate) or 0,
        lambda it: it.cap(it.releases),
    ),
    "cap of a task": (cap_of, lambda it: it.cap(it.releases)),
    "an owner's account": (by_account, lambda it: it.epsilon(3)),
    "guarantee": (
        lambda task: tuple(
            statement.epsilon for statement in planned_guarantees(task)[:2]
        ),
        lambda it: (it.epsilon(it.planned()), it.epsilon_for_owners()),
    ),
    "guarantee of an owner": (
        lambda task: planned_guarantees(task)[2].epsilon,
        lambda it: it.owner_epsilon(),
    ),
    "certificate": (robust, robust_by_hand),
    "report": (
        rules,
        lambda it: (
            (it.owner_clip, it.sigma, it.owner_rate)
            if it.unit is Unit.OWNER
            else (
                it.unit_clip,
                it.owner_clip,
                it.sigma,
                it.owner_rate,
                it.unit_rate,
            )
        ),
    ),
    "task show": (
        lambda task: shown(task)["one-server"],
        lambda it: it.epsilon(it.planned()),
    ),
    "task show in words": (
        lambda task: float(in_words(task)),
        lambda it: it.epsilon(it.planned()),
    ),
    "a model's file": (
        lambda task: float(in_a_model_file(task)),
        lambda it: it.epsilon(2),
    ),
    "server step": (
        moved,
        lambda it: it.learning_rate / it.denominator(),
    ),
    "report's divisor": (
        enforced_divisor,
        lambda it: it.denominator() if it.planned_units else 0.0,
    ),
    "task show's divisor": (
        lambda task: divisor(
            next(each for each in sentences(task) if "sum is divided" in each)
        ),
        lambda it: it.denominator() if it.planned_units else 0.0,
    ),
    "a model's digest": (
        lambda task: str(
            model_digest(task.digest, 0, task.mechanism.parameters, np.zeros(D))
        ),
        lambda it: str(
            model_digest(
                task_of(RECORDS if it.unit is Unit.RECORD else OWNERS).digest,
                0,
                [
                    Parameter(name=name, shape=(D // len(it.names),))
                    for name in it.names
                ],
                np.zeros(D),
            )
        ),
    ),
}


def same(read: Value, by_hand: Value) -> bool:
    if isinstance(by_hand, str | int):
        return read == by_hand
    # What is said is rounded up to three digits.
    return bool(read == pytest.approx(by_hand, rel=5e-3))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("numbers", [RECORDS, OWNERS], ids=["records", "owners"])
def test_every_place_says_the_numbers_of_a_tasks_own_mechanism(
    place: str, numbers: Numbers
) -> None:
    reading, by_hand = PLACES[place]
    task = task_of(numbers)
    assert task.mechanism.sensitivity == pytest.approx(numbers.sensitivity, rel=1e-12)
    assert same(reading(task), by_hand(numbers)), (reading(task), by_hand(numbers))


def cases() -> Iterator[tuple[str, str]]:
    """Each place with each change that moves what it says."""
    for place, (_, by_hand) in PLACES.items():
        for change in CHANGES:
            if not same(by_hand(changed(RECORDS, change)), by_hand(RECORDS)):
                yield place, change


def test_every_number_of_a_mechanism_is_said_somewhere() -> None:
    assert {change for _, change in cases()} == set(CHANGES)
    assert {place for place, _ in cases()} == set(PLACES) - {"headroom"}


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_alone_is_told_another_mechanism_says_that_ones_numbers(
    place: str,
) -> None:
    """So no place takes them from elsewhere: it would go on saying the file's."""
    reading, by_hand = PLACES[place]
    for change in CHANGES:
        numbers = changed(RECORDS, change)
        read = reading(told(numbers))
        assert same(read, by_hand(numbers)), (change, read, by_hand(numbers))


def test_headroom_asks_for_the_noise_of_the_mechanism() -> None:
    reading, by_hand = PLACES["headroom"]
    short = replace(RECORDS, sensitivity=1e-4)
    assert reading(told(short)) == by_hand(short) == "noise"


def test_a_mechanism_is_made_once_and_from_the_task_alone() -> None:
    task = task_of(RECORDS)
    assert isinstance(task.mechanism, Mechanism)
    assert task.mechanism is task.mechanism
    assert task.model_copy().mechanism == task.mechanism


SECTIONS = re.compile(
    r"\bprivacy\.(record|client)_(rate|clip)\b"
    r"|\bprivacy\.(noise_multiplier|cover_uploads)\b"
    r"|\btask\.training\.(rounds|attempts|learning_rate)\b"
    r"|\btask\.model\.parameters\b"
)
READ_THE_FILE = {
    "common/task.py": "checks its fields, and makes the mechanism of them",
    "cli/planning.py": "prints a file's lines",
}


def test_nobody_but_the_task_reads_these_sections_of_its_file() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for folder in PACKAGE
        for path in (ROOT / folder).rglob("*.py")
        if SECTIONS.search(code_of(path))
    }
    assert readers == set(READ_THE_FILE)


def code_of(path: Path) -> str:
    """A file's attributes, without its strings and comments."""
    tree = ast.parse(path.read_text("utf-8"))
    attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return "\n".join(ast.unparse(node) for node in attributes)
