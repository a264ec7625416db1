"""A simulated training's links: between the servers, and to the dealer."""

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

from precad.aggregator.peer_link import Frame
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role, Secret
from precad.common.ring import RingVector
from precad.dealer.dealer_role import LocalDealing
from precad.norm_check.dealing import DealerConversation, DealRequest

if TYPE_CHECKING:
    from tests.faults.world import World

SERVERS = (Role.SERVER_A, Role.SERVER_B)


class Cable:
    def __init__(self, world: "World") -> None:
        self._random = Random(f"{world.seed} cable {len(world.seen.trace)}")
        # On their way to that role.
        self.frames: dict[Role, deque[Frame]] = {role: deque() for role in SERVERS}
        self.broken = self.silent = False

    def cut(self) -> None:
        self.broken = True

    def break_at_death(self) -> None:
        """A process died: what was still on the way may be lost, from some frame on."""
        self.broken = True
        for frames in self.frames.values():
            for _ in range(self._random.randint(0, len(frames))):
                frames.pop()


def named(frame: Frame) -> str:
    return re.sub(r"/[0-9a-f]{16}", "", frame.step)


class Transport:
    def __init__(self, world: "World", cable: Cable, role: Role) -> None:
        self._world, self.cable, self._role = world, cable, role
        self._other = Role.SERVER_B if role is Role.SERVER_A else Role.SERVER_A

    def put(self, frame: Frame) -> None:
        with self._world.step(f"send {named(frame)}"):
            if frame.step == "noisy-share":
                self._check_release(bytes(frame.payload))
            if not (self.cable.broken or self.cable.silent):
                self.cable.frames[self._other].append(frame)

    def get(self, timeout_s: float) -> Frame:
        frames = self.cable.frames[self._role]
        self._world.turns.wait(lambda: bool(frames) or self.cable.broken, timeout_s)
        if frames:
            frame = frames.popleft()
            with self._world.step(f"receive {named(frame)}"):
                return frame
        self.require_alive()
        raise PeerUnavailable("the other server sent nothing in time")

    def require_alive(self) -> None:
        if self.cable.broken:
            raise PeerUnavailable("the link is broken")

    def close(self) -> None:
        self.cable.cut()

    def _check_release(self, share: bytes | memoryview) -> None:
        """What leaves is what was persisted, and both servers have charged for it."""
        seen = self._world.seen
        seen.left[self._role].add(bytes(share))
        if self._role not in self._world.cheaters:
            numbers = [n for n, released in seen.shares[self._role].items() if released == share]
            assert len(numbers) == 1, "bytes left that are no round's persisted share"
            assert numbers[0] in seen.shares[self._other], "a share left before both had charged"


class DealerCalls:
    def __init__(self, world: "World", role: Role) -> None:
        self._world, self._role = world, role
        self._epoch = -1
        self.bytes_received = 0

    @property
    def newest_attempt(self) -> int:
        return self._world.dealer.newest_attempt

    @property
    def epoch(self) -> bytes:
        return self._epoch.to_bytes(8, "big")

    def join(self) -> Secret:
        with self._call("join"):
            self._epoch = self._world.epoch
            return self._world.dealer.key_for(self._role)

    def deal(self, request: DealRequest) -> RingVector:
        with self._call("deal"):
            self._check()
            return self._world.dealer.corrections(self._role, request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        with self._call("squares"):
            self._check()
            dealer, patience_s = self._world.dealer, self._world.task.deadlines.peer
        local = LocalDealing(dealer, self._role, patience_s, self._world.clock)
        with local.squares(attempt) as conversation:
            yield conversation

    @contextmanager
    def _call(self, name: str) -> Iterator[None]:
        with self._world.step(f"dealer.{name}"):
            self._world.handshake(self._role.value, Role.DEALER.value)
            yield

    def _check(self) -> None:
        if self._epoch != self._world.epoch:
            raise PeerUnavailable("the dealer has restarted since; join again")
