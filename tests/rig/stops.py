"""Every long-running command in the states in which it waits, to be told to end there.

A scene is a deployment that goes from one state to the next: it gives each process that waits, as
``command: state``, and goes on once that process has ended. ``stopped`` tells it to end.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.rig.scene import OWNERS, Scene
from tests.rig.waiting import DEADLINE_S, until

from precad.common.identifiers import Role
from precad.common.task import Task

Waiting = tuple[str, Any]
"""What waits for what, and its process."""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "stops.json"
"""Of each scene, the load of the machine and the seconds until each command had ended with all that
it had started."""

# --- the scenes ----------------------------------------------------------------------------------


def nobody_there(scene: Scene) -> Iterator[Waiting]:
    """No other part runs: its port refuses connections, or its host is gone."""
    server = scene.part("server-a")
    scene.said("server-a", "refuses connections")
    yield "serve a: no server", server
    server = scene.part("server-b")
    scene.said("server-b", "serves task")
    yield "serve b: no server", server
    dealer = scene.part("dealer")
    scene.said("dealer", "deals for task")
    yield "serve dealer: no server", dealer
    owner = scene.part(OWNERS[0])
    scene.said(OWNERS[0], "refuses connections")
    yield "join: no server", owner
    several = [word for name in OWNERS for word in ("--config", f"{scene.folder}/{name}.toml")]
    owners = scene.start(
        "owners", "join", *several, "--logs", f"{scene.folder}/logs", "--wait", "9"
    )
    for name in OWNERS:
        (scene.folder / "logs" / f"{name}.log").touch()
    scene.said(OWNERS[1], "refuses connections")
    yield "join: no server, two owners with logs", owners
    watching = scene.start("watch", "status", scene.deployment.addresses["server-a"], "--watch",
                           "--identity", f"{scene.folder}/keys/operator")  # fmt: skip
    scene.said("watch", "no answer")
    yield "status --watch: no server", watching

    address, dialled = scene.gone()
    owner_settings = scene.settings(OWNERS[0], server_a=address, server_b=address)
    for what, command in {
        "serve a": ("serve", "a", "--config", scene.settings("server-a", server_b=address)),
        "join": ("join", "--config", owner_settings),
        "doctor": ("doctor", "--wait", "3600", "--config", owner_settings),
    }.items():
        process = scene.start(what, *command)
        dialled(process)
        yield f"{what}: no server, its host gone", process


def silence(scene: Scene) -> Iterator[Waiting]:
    """Whoever is called takes the connection and says nothing."""

    def waits(what: str, *command: str) -> Waiting:
        """A command that calls ADDRESS, a silent port's."""
        address = scene.silent()
        process = scene.start(what, *(each.replace("ADDRESS", address) for each in command))
        scene.dialled(address)
        return what, process

    part = partial(_with_silence, scene)
    both = {"server_a": "ADDRESS", "server_b": "ADDRESS"}
    yield part("serve a: server silent", "server-a", "serve", "a", server_b="ADDRESS")
    yield part("join: server silent", OWNERS[0], "join", **both)
    yield part("doctor: server silent", OWNERS[0], "doctor", "--wait", "3600", **both)
    yield part("health: server silent", "dealer", "health", "--wait", "99", listen="ADDRESS")
    yield part("join: proxy silent", OWNERS[0], "join", **_PROXY)
    yield part("doctor: proxy silent", OWNERS[0], "doctor", "--wait", "3600", **_PROXY)
    yield part("serve a: proxy silent", "server-a", "serve", "a", **_PROXY)
    database = "postgresql://precad@ADDRESS/precad"
    yield part("serve b: database silent", "server-b", "serve", "b", database=database)
    yield waits("ledger show: database silent", "ledger", "show", database)
    yield waits("report: database silent", "report", database)
    operator = ("--identity", f"{scene.folder}/keys/operator")
    for what, *more in ("status",), ("status --watch",), ("allow", "coin", "--version", "1"):
        command = (*what.split(), *more, *operator)
        yield waits(f"{what}: server silent", *command, "ADDRESS")
        through = ("a.example:7301", "--proxy", "http://ADDRESS")
        yield waits(f"{what}: proxy silent", *command, *through)


def on_the_way_to_the_dealer(scene: Scene) -> Iterator[Waiting]:
    """B calls the dealer alone, once A has called and owners are enrolled."""
    for name in ("dealer", "server-a", *OWNERS):
        scene.part(name)
    b = "server-b", "serve", "b"
    yield _with_silence(scene, "serve b: server silent, the dealer", *b, dealer="ADDRESS")
    yield _with_silence(scene, "serve b: proxy silent", *b, **_PROXY)


def _with_silence(scene: Scene, what: str, name: str, *command: str, **values: str) -> Waiting:
    """A command whose settings name a port that takes connections and says nothing, ADDRESS."""
    address = scene.silent()
    changed = {key: text.replace("ADDRESS", address) for key, text in values.items()}
    process = scene.start(what, *command, "--config", scene.settings(name, **changed))
    scene.dialled(address)
    return what, process


_PROXY = {"proxy": "http://ADDRESS"}


def enrolling(scene: Scene) -> Iterator[Waiting]:
    """One of two owners is there; then each part but the dealer loses the next."""
    scene.deployment.start_servers()
    owner = scene.part(OWNERS[0])
    scene.reached(Role.SERVER_A, lambda said: (said.phase, said.enrolled) == ("enrolling", 1))
    yield "join: enrolling, another owner missing", owner
    yield "serve a: enrolling", scene.deployment.processes["server-a"]
    yield "serve b: enrolling, server A gone", scene.deployment.processes["server-b"]
    if scene.deployment.task.has_dealer:
        yield "serve dealer: enrolling, both servers gone", scene.deployment.processes["dealer"]


def collecting(scene: Scene) -> Iterator[Waiting]:
    """An owner stands still in the midst of the training: its update doesn't come."""
    _train(scene)
    scene.halt(OWNERS[1])
    _no_version_more(scene)
    yield "join: collecting, another owner silent", scene.deployment.processes[OWNERS[0]]
    yield "serve b: collecting", scene.deployment.processes["server-b"]
    scene.said("server-a", "server B")
    if scene.deployment.task.has_dealer:
        yield "serve dealer: paused, server B gone", scene.deployment.processes["dealer"]
    yield "serve a: paused, server B gone", scene.deployment.processes["server-a"]


def validating(scene: Scene, first: str = "server-a") -> Iterator[Waiting]:
    """The dealer stands still: norms can't be checked. Both servers are told to end."""
    _train(scene)
    scene.halt("dealer")
    _no_version_more(scene)
    last, waits = _OTHER[first]
    told = _OTHER[last.value][1]
    yield "join: validating, the dealer silent", scene.deployment.processes[OWNERS[0]]
    yield f"{told}: validating, the dealer silent", scene.deployment.processes[first]
    # Owners follow A, and A follows B.
    scene.said(
        *{"server-a": (OWNERS[1], "reconnecting"), "server-b": ("server-a", "server B")}[first]
    )
    yield f"join: paused, {first} gone", scene.deployment.processes[OWNERS[1]]
    yield f"{waits}: paused, {first} gone", scene.deployment.processes[last.value]


def in_a_round(scene: Scene, still: str) -> Iterator[Waiting]:
    """A server stands still in the midst of the training."""
    other, waits = _OTHER[still]
    _train(scene)
    scene.halt(still)
    _no_version_more(scene, other)
    names = {"join": OWNERS[0], "serve dealer": "dealer", waits: other.value}
    for what, name in names.items():
        yield f"{what}: server silent, {still} in a round", scene.deployment.processes[name]


def proving(scene: Scene, still: str, step: str) -> Iterator[Waiting]:
    """A server stands still before it sends its part of a step of the proofs' check."""
    other, waits = _OTHER[still]
    point = {"coin": "PeerLink.send/proof-coin", "words": "PeerLink.send/proof"}[step]
    for name in (*scene.deployment.servers, *OWNERS):
        if name == still:
            scene.held(name, point)
        else:
            scene.part(name)
    scene.stands(still)
    for what, name in {"join": OWNERS[0], waits: other.value}.items():
        yield f"{what}: proof's {step}, {still} silent", scene.deployment.processes[name]


_OTHER = {"server-a": (Role.SERVER_B, "serve b"), "server-b": (Role.SERVER_A, "serve a")}


def with_workers(scene: Scene) -> Iterator[Waiting]:
    """As ``validating``, by workers of each server."""
    for part in ("server-a", "server-b"):
        scene.settings(part, workers=1)
    _train(scene)
    scene.halt("dealer")
    _no_version_more(scene)
    yield "serve b: validating, a worker, the dealer silent", scene.deployment.processes["server-b"]
    yield "serve a: paused, a worker, server B gone", scene.deployment.processes["server-a"]


def over(scene: Scene) -> Iterator[Waiting]:
    """The training is over, its model on offer; the dealer, to be told so, stands still."""
    path = scene.folder / "task.toml"
    text = path.read_text("utf-8")
    assert "rounds = 1000" in text
    path.write_text(text.replace("rounds = 1000", "rounds = 40"), encoding="utf-8")
    scene.deployment.task = Task.load(path)
    _train(scene)
    for name in ("server-a", "server-b"):
        scene.reached(Role(name), lambda said: said.phase == "done")
    scene.halt("dealer")
    for name in ("a", "b"):
        yield f"serve {name}: done, the dealer silent", scene.deployment.processes[f"server-{name}"]


def _train(scene: Scene) -> None:
    scene.deployment.start_servers()
    for name in OWNERS:
        scene.part(name)
    scene.reached(Role.SERVER_A, lambda said: said.version >= 1)


def _no_version_more(scene: Scene, role: Role = Role.SERVER_A) -> None:
    """Until no further version comes about."""
    seen: list[int] = []

    def stands() -> bool:
        if (said := scene.status(role)) is not None:
            seen.append(said.version)
        return len(set(seen[-_LOOKS:])) == 1 and len(seen) >= _LOOKS

    until(stands, lambda: scene.deployment.log_tail(role.value, 20), poll_s=0.5)


_LOOKS = 5


def demos(scene: Scene) -> Iterator[Waiting]:
    """The demo as it loads, as its owners come, and in a round; with a part that stands still."""
    for number, (state, words) in enumerate(
        (("loading", "loading torch"), ("enrolling", "enrol: "), ("training", "round  10/"))
    ):
        demo, name = None, f"demo-{number}"
        demo = scene.start(name, "demo", "--output", f"{scene.folder}/{name}", "--rounds", "500")
        scene.said(name, words)
        yield f"demo: {state}", demo
    demo = scene.start("demo-9", "demo", "--output", f"{scene.folder}/demo-9", "--rounds", "500")
    scene.said("demo-9", "round  10/")
    halted = next(each for each in descendants(demo.pid) if _writes_to(each, "dealer.log"))
    os.kill(halted, signal.SIGSTOP)
    yield "demo: the dealer stands still", demo


def _writes_to(pid: int, name: str) -> bool:
    return Path(f"/proc/{pid}/fd/1").readlink().name == name


def computing(scene: Scene) -> Iterator[Waiting]:
    """A training in one process."""
    task = str(scene.folder / "task.toml")
    process = scene.start("simulate", "simulate", task, "--dataset", "breast-cancer")
    scene.said("simulate", "round")
    yield "simulate: computing", process


_BY_SHARES = (
    *(nobody_there, silence, on_the_way_to_the_dealer, enrolling, collecting, validating),
    *(with_workers, over, demos, computing),
)
SCENES: dict[str, tuple[Callable[[Scene], Iterator[Waiting]], str]] = {
    **{each.__name__: (each, "crypten") for each in _BY_SHARES},
    "validating_server-b_first": (partial(validating, first="server-b"), "crypten"),
    **{f"{name}_silent": (partial(in_a_round, still=name), "crypten") for name in _OTHER},
    **{f"{each.__name__}_by_proof": (each, "proof") for each in (enrolling, collecting)},
    **{
        f"{name}_silent_before_{step}": (partial(proving, still=name, step=step), "proof")
        for name in _OTHER
        for step in ("coin", "words")
    },
}
"""Each with how norms are checked in it."""


# --- what is told to end -------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """Processes that this one has started, and those that these have."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                state, parent = (each / "stat").read_text("utf-8").rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(each.name)] = int(parent)
    found = {pid}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def runs(pid: int) -> bool:
    """Whether a process is there that hasn't ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return False
    return state not in "ZX"


def stopped(process: Any) -> float:
    """Tell a process to end; seconds until it and all that it started have."""
    started = descendants(process.pid)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(DEADLINE_S)
    until(lambda: not any(map(runs, started)), lambda: f"the end of {started}")
    return time.monotonic() - began


def play(name: str, folder: Path, popen: Callable[..., Any]) -> dict[str, float]:
    """Seconds by what waited for what, of one scene."""
    with ExitStack() as opened:
        acts, validation = SCENES[name]
        scene = Scene(folder, popen, opened, validation)
        return {what: stopped(process) for what, process in acts(scene)}
