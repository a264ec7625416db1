"""A server's way to a dealer in the same process: tests, and the protocol played on one page."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from precad.common.clock import CLOCK, Clock
from precad.common.errors import PeerUnavailable, PrecadError
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealing import Answers, DealerConversation
from precad.norm_check.dealt_triples import DealRequest, SquareRequest


class LocalDealing:
    """One server's dealing with ``dealer``, which it may share with the other server's thread."""

    def __init__(
        self, dealer: DealerRole, role: Role, timeout_s: float = 60.0, clock: Clock = CLOCK
    ) -> None:
        self._dealer = dealer
        self._role = role
        self._timeout_s = timeout_s
        self._clock = clock

    @property
    def epoch(self) -> bytes:
        """A dealer in this process has one start."""
        return b""

    def join(self) -> Secret:
        """This server's key."""
        return self._dealer.key_for(self._role)

    def deal(self, request: DealRequest) -> RingVector:
        """This server's correction words. Raises PeerUnavailable, PeerViolation."""
        return self._dealer.corrections(self._role, request)

    @contextmanager
    def squares(self, attempt: int) -> Iterator[DealerConversation]:
        """A conversation for one attempt."""
        answers = Answers(attempt, self._timeout_s, self._clock)
        with closing(_Conversation(self._dealer, self._role, answers)) as conversation:
            yield conversation


class _Conversation:
    def __init__(self, dealer: DealerRole, role: Role, answers: Answers) -> None:
        self._dealer = dealer
        self._role = role
        self._answers = answers

    def ask(self, request: SquareRequest) -> None:
        """The second of two servers squares in its own thread: there is no other here."""
        self._answers.expect(request)
        try:
            work = self._dealer.ask(self._role, request, self._answers.put)
            if work is not None:
                work()
        except PrecadError as error:
            self._answers.end(error)

    def row_key(self, context: bytes) -> Secret:
        return self._answers.row_key(context)

    def share(self, context: bytes) -> int:
        return self._answers.share(context)

    def close(self) -> None:
        self._dealer.forget(self._answers.put)
        self._answers.end(PeerUnavailable("this server ended its conversation with the dealer"))
