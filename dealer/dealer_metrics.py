"""What the dealer shows a Prometheus: numbers about the two servers' requests, and of no client.

Loaded only where the settings name an address for them. docs/metrics.md says what each is.
"""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from precad.common.wire.metrics_page import about, counter, gauge
from precad.dealer.dealer_role import SERVERS, DealerRole
from precad.dealer.dealing_service import DealingService


def collect(task: str, dealer: DealerRole, service: DealingService) -> Iterator[Metric]:
    """Yield the present values, for the task of that name; called in any thread."""
    counts, names = service.counts.copy(), [role.value for role in SERVERS]

    def of_each(what: str) -> dict[str, float]:
        return {name: counts[what, name] for name in names}

    yield about("dealer", task)
    yield counter("joins_total", "How often a server came for its key.", of_each("joins"), "server")
    said = "The newest that is dealt for; -1: none."
    yield gauge("newest_attempt", said, dealer.newest_attempt)
    conversations = list(service.conversations.items())
    yield gauge("conversations", "Servers' open ones about an attempt.", len(conversations))
    said = "Halves of masks that a server named."
    yield counter("halves_total", said, of_each("halves"), "server")
    yield gauge("halves_waiting", "Those that only one has named.", dealer.waiting)
    yield gauge("dealing", "Submissions that wait or are dealt.", len(service.dealing))
    unread = dict.fromkeys(names, 0)
    for answers, role in conversations:
        unread[role.value] += len(answers)
    yield gauge("answers_waiting", "Answers that a server hasn't taken yet.", unread, "server")
    said = "Answers that the servers' halves don't fit together."
    yield counter("violations_total", said, of_each("violations"), "server")
    links = {link: size for (what, link), size in counts.items() if what == "bytes"}
    yield counter("link_bytes_total", "Payloads since this start.", links, "link")
    said = "Of this process, since its start."
    yield counter("cpu_seconds_total", said, time.process_time())
