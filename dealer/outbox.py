"""What the dealer answers one server's conversation: as many answers in a message as there are."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence

from precad.common.errors import PeerViolation
from precad.common.secret import Secret
from precad.norm_check.dealing import Answer, GateKeys
from precad.protos import precad_pb2 as pb

_TOGETHER = 1 << 12
"""Answers in a message, at most; keys of gates, which are long, end one."""


class Outbox:
    """Takes answers from any thread; a message costs more than an answer in it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Sequence[bytes], Answer]] = deque()
        self._some = asyncio.Event()
        self._told = False
        """Whether the loop will look yet, for whatever is put before it does."""
        self._ended = False

    def __len__(self) -> int:
        """How many answers wait for the server to take them."""
        return len(self._waiting)

    def put(self, contexts: Sequence[bytes], answer: Answer) -> None:
        """As ``Deliver``."""
        self._waiting.append((contexts, answer))
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._some.set)

    def end(self) -> None:
        """What waits goes out, and no more; called in the loop's thread."""
        self._ended = True
        self._some.set()

    async def replies(self) -> AsyncIterator[pb.SquareReply]:
        """Messages, until the end."""
        while self._waiting or not self._ended:
            await self._some.wait()
            self._some.clear()
            self._told = False
            while self._waiting:
                yield self._reply()

    def _reply(self) -> pb.SquareReply:
        reply = pb.SquareReply()
        while self._waiting and len(reply.answers) < _TOGETHER:
            contexts, answer = self._waiting.popleft()
            add_answer(reply, contexts, answer)
            if isinstance(answer, GateKeys):
                break
        return reply


def add_answer(reply: pb.SquareReply, contexts: Sequence[bytes], answer: Answer) -> None:
    """The dealer's answer about these, to the answers in ``reply``."""
    match answer:
        case GateKeys():
            reply.answers.add(contexts=contexts, gate_keys=answer.reveal())
        case Secret():
            reply.answers.add(contexts=contexts, row_key=answer.reveal())
        case int():
            reply.answers.add(contexts=contexts, share=answer)
        case PeerViolation():
            reply.answers.add(contexts=contexts, violation=str(answer))
        case _:
            reply.answers.add(contexts=contexts, unavailable=str(answer))
