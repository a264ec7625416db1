"""Settings of a server's process."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from precad.common.process_settings import Address, DiallingSettings, ListenAddress


class ServerSettings(DiallingSettings):
    """What servers A and B have alike."""

    DIALS: ClassVar[tuple[str, ...]] = ("dealer",)

    listen: ListenAddress
    dealer: Address | None = None
    """Where the dealer listens; a task with `validation = "proof"` has none."""
    state: Path
    """Folder for the database, the spool and the model; belongs to this server alone.
    """
    database: Annotated[str | None, Field(repr=False)] = None
    """SQLAlchemy URL; SQLite in the state folder unless given."""
    journal: Path | None = None
    """Folder for the journal file and the task's own coin key, on no disk and in no
    backup that the database comes back from; `<state>-journal` beside the state folder
    unless given."""
    linger: Annotated[float, Field(ge=0)] = 30.0
    """Seconds that the finished model stays on offer once all who take part were heard
    from since this server's start, and ten times as many while one wasn't; `inf`: until
    it is stopped."""
    enrolment: Literal["open", "roster", "token"] = "open"
    """Who may enrol: any client with a certificate, those on the roster, or with a
    token."""
    roster: Path | None = None
    """With `enrolment = "roster"`: the operator's list (TOML), the same at both
    servers."""
    enrol_until: datetime | None = None
    """When enrolment closes, with its time zone, in place of the task's
    `deadlines.enrol` from this server's start; the same at both servers."""
    enrol_quorum: Annotated[int, Field(ge=1)] | None = None
    """With so many owners it closes at once; the task's most unless given."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """Processes that validate, each with one of the other server's; 0: the server does
    it alone."""
    worker_listen: ListenAddress = "127.0.0.1:0"
    """Where they listen: the first on this port, the others on those that follow; port
    0 takes free ones. Server B's must be reached by server A's workers."""
    workers_on: Literal["this-machine", "ray"] = "this-machine"
    """With `ray`: on the nodes of a Ray cluster (`pip install precad[ray]`)."""
    ray: str = "auto"
    """The cluster's address, as Ray takes it."""
    metrics: ListenAddress | None = None
    """Where a Prometheus finds this server's metrics, without TLS: an address that only
    it reaches; none unless given."""


class ServerASettings(ServerSettings):
    """Server A dials server B."""

    DIALS = ("dealer", "server_b")

    server_b: Address


class ServerBSettings(ServerSettings):
    """Server B listens for server A."""
