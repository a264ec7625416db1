"""Threads that take turns, by a seed, on a clock that moves only when all wait."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import cast

import greenlet

from precad.common.clock import Clock


class Killed(BaseException):
    """Unwinds a thread of a party that is dead; no handler of errors catches it."""


class Hang(AssertionError):
    """Every thread waits for what can't happen, or the training takes for ever."""


@dataclass(slots=True)
class Life:
    party: str
    alive: bool = True
    clock_offset_s: float = 0.0  # Added to its monotonic clock
    at_death: list[Callable[[], None]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class _Thread:
    name: str
    life: Life
    run: greenlet.greenlet
    ready: Callable[[], bool] | None = None
    deadline: float | None = None


class Turns:
    def __init__(self, seed: int, limit_s: float) -> None:
        self.now = 0.0
        self.failure: BaseException | None = None
        self._random = Random(f"turns {seed}")
        self.limit_s = limit_s
        self._threads: list[_Thread] = []
        self._current: _Thread
        self._scheduler = greenlet.getcurrent()
        self._alarms: list[tuple[float, int, Callable[[], None]]] = []
        self._stopping = False

    @property
    def life(self) -> Life:
        return self._current.life

    def spawn(self, name: str, life: Life, target: Callable[[], None]) -> None:
        def body() -> None:
            try:
                if life.alive and not self._stopping:
                    target()
            except Killed:
                pass
            except BaseException as error:  # noqa: BLE001 -- shown by run()
                self.failure = self.failure or error

        self._threads.append(
            _Thread(name, life, greenlet.greenlet(body, self._scheduler))
        )

    def at(self, delay_s: float, act: Callable[[], None]) -> None:
        self._alarms.append((self.now + delay_s, len(self._alarms), act))

    def kill(self, life: Life) -> None:
        if life.alive:
            life.alive = False
            for act in life.at_death:
                act()

    @contextmanager
    def acting(self, life: Life) -> Iterator[None]:
        thread = self._current
        own, thread.life = thread.life, life
        try:
            yield
        finally:
            thread.life = own

    def check_alive(self) -> None:
        if not self.life.alive or self._stopping:
            raise Killed

    def wait(self, ready: Callable[[], bool], timeout_s: float | None = None) -> bool:
        self.check_alive()
        thread = self._current
        thread.ready = ready
        thread.deadline = None if timeout_s is None else self.now + max(0.0, timeout_s)
        self._scheduler.switch()
        thread.ready = None
        self.check_alive()
        return ready()

    def sleep(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def run(self, until: Callable[[], bool]) -> None:
        try:
            while not until():
                self._step()
                if self.failure is not None:
                    raise self.failure
        finally:
            self._stopping = True
            while self._threads:
                self._give(self._threads[0])

    def _step(self) -> None:
        if self._alarms and (due := min(self._alarms))[0] <= self.now:
            self._alarms.remove(due)
            due[2]()
            return
        runnable = [thread for thread in self._threads if self._runnable(thread)]
        if runnable:
            self._give(self._random.choice(runnable))
            return
        times = [t.deadline for t in self._threads if t.deadline is not None]
        times += [alarm[0] for alarm in self._alarms]
        if not times:
            raise Hang(f"nobody can go on: {[thread.name for thread in self._threads]}")
        self.now = min(times)
        if self.now > self.limit_s:
            raise Hang(f"not over after {self.limit_s:g} virtual seconds")

    def _runnable(self, thread: _Thread) -> bool:
        late = thread.deadline is not None and thread.deadline <= self.now
        return not thread.life.alive or thread.ready is None or late or thread.ready()

    def _give(self, thread: _Thread) -> None:
        self._current = thread
        thread.run.switch()
        if thread.run.dead:
            self._threads.remove(thread)


class TurnsClock(Clock):
    def __init__(self, turns: Turns, seed: int) -> None:
        self._turns = turns
        self._random = Random(f"{seed} jitter")

    def now(self) -> float:
        return self._turns.now + self._turns.life.clock_offset_s

    def sleep(self, seconds: float) -> None:
        self._turns.sleep(seconds)

    def condition(self) -> threading.Condition:
        return cast("threading.Condition", TurnsCondition(self._turns))

    def jitter(self) -> float:
        return 0.5 + self._random.random()

    def start_thread(self, name: str, target: Callable[[], None]) -> None:
        life = self._turns.life
        self._turns.spawn(f"{life.party}: {name}", life, target)


class TurnsCondition:
    def __init__(self, turns: Turns) -> None:
        self._turns, self._held, self._news = turns, False, 0

    def __enter__(self) -> None:
        if self._held:
            self._turns.wait(lambda: not self._held)
        self._turns.check_alive()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False

    def wait(self, timeout: float | None = None) -> bool:
        seen = self._news
        self._release(lambda: self._news > seen and not self._held, timeout)
        return self._news > seen

    def wait_for(
        self, ready: Callable[[], object], timeout: float | None = None
    ) -> bool:
        self._release(lambda: bool(ready()), timeout)
        return bool(ready())

    def _release(self, ready: Callable[[], bool], timeout: float | None) -> None:
        self._held = False
        try:
            self._turns.wait(ready, timeout)
            self._turns.wait(lambda: not self._held)
        finally:
            self._held = True

    def notify_all(self) -> None:
        self._news += 1
