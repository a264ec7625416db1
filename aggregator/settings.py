"""Settings of a server's process, as its TOML file has them."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat

from precad.common import Address, Count, DiallingSettings, ListenAddress


class ServerSettings(DiallingSettings):
    """The settings that servers A and B have alike."""

    DIALS: ClassVar[tuple[str, ...]] = ("dealer",)

    listen: ListenAddress
    dealer: Address | None = None
    """Where the dealer listens; a task with `validation = "proof"` has none."""
    state: Path
    """Folder for the database, the spool and the model; it belongs to this server
    alone."""
    database: Annotated[str | None, Field(repr=False)] = None
    """SQLAlchemy URL of the database; SQLite in the state folder unless given. Not
    shown: it may hold a password."""
    journal: Path | None = None
    """Folder for the journal file and the task's own coin key: on another disk than the
    database, and in no backup that the database is put back from. It is
    `<state>-journal` beside the state folder unless given."""
    linger: NonNegativeFloat = 30.0
    """Seconds that the finished model stays on offer once all owners were heard from
    since this server's start, and ten times as many while one wasn't; `inf`: until the
    server is stopped."""
    enrolment: Literal["open", "roster", "token"] = "open"
    """Who may enrol: any client with a certificate, those on the operator's roster, or
    those with a token."""
    roster: Path | None = None
    """With `enrolment = "roster"`: the operator's list (TOML), the same at both
    servers."""
    enrol_until: datetime | None = None
    """When enrolment closes, with a time zone, in place of the task's `deadlines.enrol`
    after this server's start; the same at both servers."""
    enrol_quorum: Count | None = None
    """With so many owners enrolment closes at once; the most that the task allows
    unless given."""
    workers: Annotated[int, Field(ge=0, le=256)] = 0
    """How many processes validate, each together with one of the other server's; 0: the
    server's own process validates."""
    worker_listen: ListenAddress = "127.0.0.1:0"
    """Where workers listen: the first on this port, the others on the ports that
    follow; port 0 takes free ones. Server A's workers must reach server B's."""
    workers_on: Literal["this-machine", "ray"] = "this-machine"
    """Where workers run. `ray`: on the nodes of a Ray cluster (`pip install
    precad[ray]`)."""
    ray: str = "auto"
    """The Ray cluster's address, as Ray takes it."""
    metrics: ListenAddress | None = None
    """Where a Prometheus finds this server's metrics, without TLS: give an address that
    only Prometheus reaches. No metrics are shown unless it is given."""


class ServerASettings(ServerSettings):
    """The settings of server A, which dials server B."""

    DIALS = ("dealer", "server_b")

    server_b: Address


class ServerBSettings(ServerSettings):
    """The settings of server B, which server A dials."""
