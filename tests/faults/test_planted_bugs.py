"""Bugs put in on purpose, each found by a simulated training that a seed replays.

    python -m tests.faults.test_planted_bugs

Each bug is a real risk of the design: a small change of the package's own functions.
The command plays schedules in a fixed order until one breaks an invariant
(``invariants.py``, ``world.py``) and writes which, and what the search took, to
``benchmarks/results/planted_bugs.json``. The test replays what was found, and plays the
same schedules without the bug.
"""

import functools
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, TypedDict
from unittest.mock import ANY

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.faults.conftest import BOTH, play_in, quick_folder
from tests.faults.turns import Hang
from tests.rig.documents import Document

from precad.aggregator import release
from precad.aggregator.attempt_states import (
    Counted,
    Matched,
    Noised,
    Opened,
    Prepared,
    Rejections,
    Sent,
    Summed,
)
from precad.aggregator.collect import matching
from precad.aggregator.collect.matching import Collected, HeldList
from precad.aggregator.cut_shares import CutShares
from precad.aggregator.noise import NoiseSource
from precad.aggregator.rounds import start_attempt
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import agree_coin
from precad.aggregator.server_messages import Position
from precad.aggregator.store import Store, attempts
from precad.aggregator.store.journal_file import JournalEntries, JournalFile
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training import reconcile, recovery, round_end, training_loop
from precad.aggregator.training.recovery import Recovery, Remedy, compare
from precad.aggregator.training.session import Session
from precad.aggregator.validate import crypten_comparisons
from precad.aggregator.validate.check_with_dealer import WithDealer
from precad.aggregator.validate.crypten_comparisons import all_signs
from precad.aggregator.validate.validation import Verdicts
from precad.aggregator.workers import worker_pairs
from precad.client.pending_update import Pending
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.model import ModelVector
from precad.common.ring import RingVector, derive
from precad.common.submission import Submission
from precad.norm_check.prime_field import Group

RESULT = Path(__file__).parents[2] / "benchmarks/results/planted_bugs.json"
Patch = pytest.MonkeyPatch
MOST = 3000
FOUND = {
    each["bug"]: each for each in json.loads(RESULT.read_text(encoding="utf-8"))["bugs"]
}


Plant = Callable[[Patch], None]


class Plan(TypedDict, total=False):
    """Arguments of ``play_in`` but the folder and the seed."""

    rounds: int
    faults: int
    restores: tuple[Role, ...]
    orders: list[str]
    bad: int
    workers: int


def voids_what_it_countersigned(patch: Patch) -> None:
    """The other lost its entry: the attempt may have left; both keep it as void."""
    truly_over = (AttemptState.DONE, AttemptState.WRITTEN_OFF)
    patch.setattr(attempts, "_NEVER_VOIDED", truly_over)
    asks_to_void_what_it_countersigned(patch)


def asks_to_void_what_it_countersigned(patch: Patch) -> None:
    """The same, where the store still refuses it."""

    def voiding(own: Position, theirs: Position) -> Recovery:
        found = compare(own, theirs)
        instead = {Remedy.LOST: Remedy.VOID, Remedy.LEARN_LOST: Remedy.CONFIRM_VOID}
        return found._replace(remedy=instead.get(found.remedy, found.remedy))

    patch.setattr(reconcile, "compare", voiding)


def tries_again_what_is_prepared(patch: Patch) -> None:
    """Both are prepared; instead of going on, one more attempt releases the version."""
    prepare = attempts.Attempts.prepare

    def starting_over(own: Position, theirs: Position) -> Recovery:
        found = compare(own, theirs)
        return Recovery(Remedy.NOTHING) if found.remedy is Remedy.RELEASE else found

    def prepared_anew(
        own: attempts.Attempts,
        attempt: int,
        valid: Collection[ClientId],
        valid_set: Digest,
        rejections: Rejections,
        noisy_share: bytes | memoryview,
        submissions: Mapping[ClientId, str],
    ) -> None:
        if (older := own.pending()) is not None:
            own.end(older.attempt, AttemptState.WRITTEN_OFF)
        prepare(own, attempt, valid, valid_set, rejections, noisy_share, submissions)

    patch.setattr(reconcile, "compare", starting_over)
    patch.setattr(attempts.Attempts, "prepare", prepared_anew)


def forgets_charges(patch: Patch) -> None:
    """After a database was put back nobody else is asked."""
    same = reconcile._same_history
    patch.setattr(
        reconcile,
        "_same_history",
        lambda *given, **named: same(*given, **named) or True,
    )
    patch.setattr(JournalFile, "read", lambda _: JournalEntries())


def sends_before_the_countersignature(patch: Patch) -> None:
    """A share leaves when this server is prepared, whether or not the other one is."""

    for module in (training_loop, recovery):
        patch.setattr(
            module, "countersign", lambda _, own: Sent(own.counted, own.noisy_share)
        )


def noises_again_after_a_restart(patch: Patch) -> None:
    """What goes on after a break is noised once more: two releases of one sum."""
    again = recovery._prepared_again

    def noised(session: Session) -> Prepared:
        found = again(session)
        first = bytes([found.noisy_share[0] ^ 1])
        return replace(found, noisy_share=first + found.noisy_share[1:])

    patch.setattr(recovery, "_prepared_again", noised)


def server_b_adds_no_noise(patch: Patch) -> None:
    """One server's noise is all that one curious server doesn't know."""
    sums: list[RingVector] = []

    def kept(summed: Summed, noise: NoiseSource, group: Group) -> Noised:
        sums[:] = [summed.share_sum.copy()]
        return release.add_noise(summed, noise, group)

    def unnoised(store: Store, noised: Noised, shares: CutShares) -> Prepared:
        share = sums.pop() if store.role is Role.SERVER_B else noised.noisy_share
        return release.prepare(store, replace(noised, noisy_share=share), shares)

    patch.setattr(training_loop, "add_noise", kept)
    patch.setattr(training_loop, "prepare", unnoised)


def publishes_before_the_other_confirms(patch: Patch) -> None:
    """Owners hear of a model that one server alone has on its disk."""
    keep = round_end.keep

    def published(
        session: Session,
        counted: Counted,
        theta: ModelVector,
        model: Digest,
        steps: round_end.Steps,
    ) -> None:
        keep(session, counted, theta, model, steps)
        round_end.confirm(session)

    for module in (training_loop, recovery):
        patch.setattr(module, "keep", published)


def matches_other_bytes(patch: Patch) -> None:
    """Whoever sent something to both servers counts, whatever it was."""

    def alike(
        opened: Opened,
        role: Role,
        collected: Collected,
        theirs: HeldList,
        early: frozenset[ClientId],
    ) -> Matched:
        other = theirs.of(matching.rest_of(opened, early))
        mine = list(other.values())
        for place, (client, entry) in enumerate(other.items()):
            held = collected[client]
            if isinstance(entry, bytes) and isinstance(held, Submission):
                mine[place] = held.header.whole_digest.value
        return matching.match(opened, role, collected, HeldList.listing(mine), early)

    patch.setattr(training_loop, "match", alike)


def names_other_bytes(patch: Patch) -> None:
    """After A's list B names whoever A holds, whatever the client sent to each."""
    name_rest = matching.name_rest

    def named(*given: Any, names: bool) -> frozenset[ClientId]:
        opened, inbox, link, take, held = given
        loose = dict.fromkeys(held, ANY)
        return name_rest(opened, inbox, link, take, loose, names=names)

    patch.setattr(matching, "name_rest", named)


def ignores_the_norm(patch: Patch) -> None:
    """The range test alone decides: norms up to 64β pass."""

    def without(compared: RingVector, negative: NDArray[np.bool_]) -> NDArray[np.bool_]:
        compared[:, -1] = -1
        return all_signs(compared, negative)

    patch.setattr(crypten_comparisons, "all_signs", without)


def keeps_the_invalid_in_the_sum(patch: Patch) -> None:
    """What didn't pass is rejected, and its share stays in the accumulator."""
    patch.setattr(WithDealer, "_take_out", lambda *_: None)


def draws_in_each_attempt(patch: Patch) -> None:
    """Whoever can cut the servers' link cuts it until its client is drawn."""

    def anew(aggregator: Aggregator, version: int) -> Secret:
        tried = aggregator.store.attempts.count_of(version)
        return derive(agree_coin(aggregator, version), "anew", tried)

    patch.setattr(start_attempt, "agree_coin", anew)


def forgets_opened_attempts(patch: Patch) -> None:
    """More than three attempts of a version are opened, and nobody is asked."""
    patch.setattr(start_attempt, "OPENED_CAP", 10**6)


def samples_in_each_attempt(patch: Patch) -> None:
    """An owner shares another update when an attempt starts over."""
    kept = Pending.update

    def another(self: Pending, version: int) -> RingVector | None:
        found = kept(self, version)
        return None if found is None else found + 1

    patch.setattr(Pending, "update", another)


def counts_a_pair_twice(patch: Patch) -> None:
    """What pairs of workers hand in is added up twice."""
    patch.setattr(
        worker_pairs, "Verdicts", lambda refused, total: Verdicts(refused, 2 * total)
    )


def counts_what_a_pair_refused(patch: Patch) -> None:
    """Verdicts of workers don't reach their server."""
    patch.setattr(worker_pairs, "Verdicts", lambda _, total: Verdicts({}, total))


ONE_ROUND: Plan = {"rounds": 1}
CALM: Plan = {"rounds": 2, "bad": 1, "faults": 0}
BAD: Plan = {"rounds": 1, "bad": 1}
BREAKS_IN_RELEASE: Plan = {
    "rounds": 1,
    "orders": ["server-b crash before: send noisy-share"],
}
LOSES_ITS_ENTRY: Plan = {**BREAKS_IN_RELEASE, "restores": BOTH[1:]}
PUT_BACK: tuple[Plan, ...] = tuple(
    {"rounds": 2, "restores": r} for r in (BOTH[:1], BOTH[1:])
)
CUT: Plan = {"rounds": 1, "orders": ["server-a cut: send held"]}
OFTEN: Plan = {
    "rounds": 1,
    "orders": ["server-b crash before: store.attempts.prepare"] * 4,
}
PAIRS: Plan = {"rounds": 1, "workers": 2, "bad": 1}
BUGS: dict[str, tuple[Plant, tuple[Plan, ...]]] = {
    plant.__name__: (plant, plans)
    for plans, *plants in (
        (
            (LOSES_ITS_ENTRY,),
            voids_what_it_countersigned,
            asks_to_void_what_it_countersigned,
        ),
        ((BREAKS_IN_RELEASE,), tries_again_what_is_prepared),
        (PUT_BACK, forgets_charges),
        ((ONE_ROUND,), sends_before_the_countersignature, noises_again_after_a_restart),
        ((ONE_ROUND,), server_b_adds_no_noise, publishes_before_the_other_confirms),
        ((CALM,), matches_other_bytes, names_other_bytes),
        ((BAD,), ignores_the_norm, keeps_the_invalid_in_the_sum),
        ((CUT,), draws_in_each_attempt, samples_in_each_attempt),
        ((OFTEN,), forgets_opened_attempts),
        ((PAIRS,), counts_a_pair_twice, counts_what_a_pair_refused),
    )
    for plant in plants
}  # Each with the schedules in which it is looked for, seed after seed


def broken(
    folder: Path, seed: int, plan: Plan, bug: Plant | None = None
) -> tuple[str, str] | None:
    with Patch.context() as patch:
        if bug is not None:
            bug(patch)
        try:
            play_in(folder, seed, **plan)
        except Exception as error:  # noqa: BLE001 -- a planted bug may raise any
            return _what(error), (str(error).splitlines() or [""])[0]
    return None


def _what(error: Exception) -> str:
    """Where it came to light: an invariant, a step, or that nobody can go on."""
    if isinstance(error, Hang):
        return "hang"
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    name = [frame.name for frame in frames if frame.filename.startswith(here)][-1]
    said = {
        "stopped": "no server stops",
        "_check_release": "what leaves was charged by both",
    }
    return said.get(name, name)


def search(folder: Path, name: str) -> Document:
    began, (bug, plans) = time.process_time(), BUGS[name]
    schedules = ((seed, plan) for seed in count(1) for plan in plans)
    for played, (seed, plan) in enumerate(schedules, start=1):
        if (found := broken(folder, seed, plan, bug)) is not None:
            spent = round(time.process_time() - began, 2)
            shown = {
                "invariant": found[0],
                "said": found[1],
                "schedules": played,
                "cpu_s": spent,
            }
            return {"bug": name, "seed": seed, "plan": plan, **shown}
        if played == MOST:
            raise AssertionError(f"not found in {MOST} schedules: {name}")
    raise AssertionError


def plan_of(found: Document) -> Plan:
    plan: Plan = found["plan"].copy()
    if "restores" in plan:
        plan["restores"] = tuple(Role(name) for name in plan["restores"])
    return plan


@functools.cache
def without_a_bug(schedule: str) -> tuple[str, str] | None:
    """Several bugs were found by one schedule."""
    seed, plan = json.loads(schedule)
    with quick_folder() as folder:
        return broken(folder, seed, plan_of({"plan": plan}))


@pytest.mark.parametrize("name", BUGS)
def test_the_schedule_that_found_it_breaks_that_invariant_and_without_the_bug_none(
    name: str,
) -> None:
    """Where a change has moved the schedule's steps, one of the next seeds does."""
    found, (bug, _) = FOUND[name], BUGS[name]
    for seed in range(found["seed"], found["seed"] + 12):
        with quick_folder() as folder:
            seen = broken(folder, seed, plan_of(found), bug)
        if seen is not None and seen[0] == found["invariant"]:
            break
    else:
        pytest.fail(
            "not found any more: search anew by python -m"
            " tests.faults.test_planted_bugs"
        )
    assert without_a_bug(json.dumps([seed, found["plan"]])) is None


def main() -> None:
    if sys.argv[1:]:
        with quick_folder() as folder:
            print(search(folder, sys.argv[1]))  # noqa: T201
        return
    hardware = {"processor": platform.machine(), "cores": os.cpu_count()}
    with quick_folder() as folder:
        bugs = [search(folder, name) for name in BUGS]
    shown = {"what": "planted_bugs.py", "hardware": hardware, "bugs": bugs}
    text = json.dumps(
        shown, indent=2, ensure_ascii=False, default=lambda role: role.value
    )
    RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
