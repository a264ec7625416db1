"""A dealer in its server's own process, where nothing crosses a network."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import Role, Secret
from precad.common.ring import RingVector
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import DealerConversation, DealRequest, SquareRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDealing:
    """A server's way to a dealer in its own process: see ``run_round``."""

    dealer: DealerRole
    role: Role
    timeout_s: float = 60.0
    """Seconds that the server waits for an answer about a submission."""
    clock: Clock = CLOCK
    epoch = b""
    """Empty: such a dealer never restarts."""

    def join(self) -> Secret:
        """Return this server's key."""
        return self.dealer.key_for(self.role)

    def deal(self, request: DealRequest) -> RingVector:
        """Return this server's correction words, as ``Dealing.deal``."""
        return self.dealer.corrections(self.role, request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        """Yield a conversation about an attempt's submissions, as ``Dealing.squares``.

        The second of the two servers squares in its own thread.
        """

        def send(request: SquareRequest) -> None:
            try:
                work = self.dealer.ask(self.role, request, conversation.put)
                if work is not None:
                    work()
            except PrecadError as error:
                conversation.end(error)

        conversation = DealerConversation(
            attempt=attempt,
            send=send,
            timeout_s=self.timeout_s,
            clock=self.clock,
        )
        try:
            yield conversation
        finally:
            self.dealer.forget(conversation.put)
            conversation.end(
                PeerUnavailable("this server ended its conversation with the dealer")
            )
