"""What ends when: the certificates and revocation lists that a party uses or has met.

The one place that lists them, for the log, `precad status`, `doctor` and `health`, and
for the metrics.
"""

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import NamedTuple

from precad.common import clock, log
from precad.common.identity import Identity, Principal, how_to_renew, read_certificates

SOON = timedelta(days=30)
"""How long before an end people are told of it."""
_LOOK_S = 10.0
"""Seconds between two looks at what ends."""


class Ending(NamedTuple):
    """A certificate or a revocation list, and when it ends."""

    ends: datetime
    what: str
    """What ends, in words."""
    kind: str
    """The party's role, ``authority`` or ``revocation-list``."""
    remedy: str
    """What to do about it, in words."""


def endings(identity: Identity, met: Mapping[Principal, datetime]) -> Iterator[Ending]:
    """Yield what ends: the party's own certificate, authorities, lists, others'.

    ``met`` are the other parties, each with its certificate's end.
    """
    current = identity.current()
    own, *intermediates = read_certificates(current.cert, "cert")
    # A copy: calls come in meanwhile.
    parties = dict(met)
    parties[identity.principal] = own.not_valid_after_utc
    for principal, ends in parties.items():
        what = f"the certificate of {principal}"
        yield Ending(ends, what, principal.role.value, how_to_renew(principal))
    roots = read_certificates(current.ca, "ca")
    for authority in itertools.chain(intermediates, roots):
        what = f"the authority {authority.subject.rfc4514_string()}"
        remedy = "a new one needs new certificates of all parties, and restarts"
        yield Ending(authority.not_valid_after_utc, what, "authority", remedy)
    for listed in identity.revocations.lists():
        what = f"the revocation list of {listed.issuer.rfc4514_string()}"
        remedy = "its authority makes a new one; until then this one stays in force"
        if listed.next_update_utc is not None:
            yield Ending(listed.next_update_utc, what, "revocation-list", remedy)


def ends_soon(identity: Identity) -> list[str]:
    """Return a sentence on each that has ended or ends within ``SOON``, next first."""
    latest = clock.wall() + SOON
    return [
        f"{what} ends on {ends:%Y-%m-%d %H:%M} UTC: {remedy}"
        for ends, what, _, remedy in sorted(endings(identity, identity.met))
        if ends < latest
    ]


async def tell_until(event: asyncio.Event, identity: Identity) -> None:
    """Wait for ``event``; meanwhile warn of what ends soon, in the log, once a day."""
    told: dict[str, date] = {}
    while not event.is_set():
        today = clock.wall().date()
        for sentence in ends_soon(identity):
            if told.get(sentence) != today:
                told[sentence] = today
                log.warning("%s", sentence)
        await clock.wait_at_most(event, _LOOK_S)
