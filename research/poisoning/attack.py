"""The interface of an attack, and the table of all."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from research.registry import Registry

Reals = NDArray[np.float64]
Images = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scene:
    """A round as the adversary sees it.

    Attributes:
        theta: the model before it, ``[d]``.
        others: honest clients' updates, ``[m, d]``: more than a real adversary knows.
        step: the model moves by this times the sum of all updates.
        bound: an update beyond this norm doesn't count; infinite where nothing is
            checked.
        learn: bad client's number, learning rate and steps in; what gradient descent on
            its own records makes of the model out, ``[d]``.
        numbers: of the bad clients that were drawn, one for each row, from 0.
        generator: seeded by run and round.
    """

    theta: Reals = field(repr=False)
    others: Reals = field(repr=False)
    step: float
    bound: float
    learn: Callable[[int, float, int], Reals] = field(repr=False)
    numbers: tuple[int, ...]
    generator: np.random.Generator = field(repr=False)


class Attack:
    """Honest in everything; a real one overrides what it does otherwise."""

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """Bad client ``number``'s records, once, before training; not changed in place."""
        del number, classes
        return x, y

    def submit(self, honest: Reals, scene: Scene) -> Reals:
        """In place of the bad clients' updates on those records, ``[k, d]``; clipped afterwards."""
        del scene
        return honest

    def goal(self, x: Images, y: Labels, classes: int) -> tuple[Images, Labels] | None:
        """Of held-out records, those that it aims at and the labels that it wants there."""
        del x, y, classes
        return None


ATTACKS: Registry[Callable[..., Attack]] = Registry(
    "attack",
    "research.poisoning.backdoors",
    "research.poisoning.distributed_backdoor",
    "research.poisoning.semantic_backdoor",
    "research.poisoning.label_flipping",
    "research.poisoning.one_label",
    "research.poisoning.scaled",
    "research.poisoning.stat_opt",
)
ATTACKS.register("none")(Attack)


def poisoned(
    attack: Attack, x: Images, y: Labels, count: int, number: int, classes: int
) -> tuple[Images, Labels]:
    """The same number of records, ``count`` of them poisoned in place of themselves.

    Those whose labels an attack changes come first: a record of the target label with a
    backdoor's pattern would be spent for little. What it adds beside the records as
    they are stands at the end of what it gives, and takes its own record's place where
    there is one for each.

    Args:
        attack: what poisons.
        x: records.
        y: labels.
        count: at most so many.
        number: of the bad client.
        classes: there are so many labels.
    """
    bad_x, bad_y = attack.poison(x, y, number, classes)
    added_x, added_y = bad_x[len(y) :], bad_y[len(y) :]
    if len(added_y):
        places = np.arange(min(len(added_y), len(y)))
        if len(added_y) == len(y):
            places = np.argsort(added_y == y, stable=True)
        places = places[:count]
        mixed_x, mixed = x.copy(), y.copy()
        mixed_x[places], mixed[places] = added_x[places], added_y[places]
        return mixed_x, mixed
    changed = np.flatnonzero(bad_y != y)[:count]
    mixed = y.copy()
    mixed[changed] = bad_y[changed]
    return x, mixed


def per_client_share(wanted: Reals, scene: Scene) -> Reals:
    """The updates by which all bad clients of a round together put ``wanted`` in the model's place.

    Model replacement (Bagdasaryan et al. 2020): as if the others' updates cancelled.
    """
    one = (wanted - scene.theta) / (scene.step * len(scene.numbers))
    return np.tile(one, (len(scene.numbers), 1))
