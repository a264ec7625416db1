"""Organisations with a shell each, in network namespaces where root can make them."""

import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.rig.waiting import DEADLINE_S

import precad
from precad.cli.local_deployment import free_addresses

NAMES = ("North", "South", "West")
PORTS = (
    "7301",
    "7302",
    "7303",
    "7304",
    "7311",
    "7312",
    "7313",
)  # Those that documents name


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Network:
    """A namespace a host, all on one bridge; loopback, where none can be made."""

    def __init__(self, folder: Path, *, apart: bool = True) -> None:
        self.hosts = {name: f"{name.lower()}.example" for name in NAMES}
        self._folder, self._mark = folder, f"precad-{secrets.token_hex(3)}"
        self._made: list[str] = []
        free = (address.rpartition(":")[2] for address in free_addresses(len(PORTS)))
        self._ports = dict(zip(PORTS, free, strict=True))
        try:
            if apart:
                self._make()
        except (OSError, subprocess.CalledProcessError):
            self.close()
        self.separate = bool(self._made)

    def _make(self) -> None:
        hub = self._space("hub")
        ip("-n", hub, "link", "add", "bridge0", "type", "bridge")
        ip("-n", hub, "link", "set", "bridge0", "up")
        lines = ["127.0.0.1 localhost"]
        for number, name in enumerate(NAMES, 1):
            space, wire = self._space(name), f"wire{number}"
            ip(
                "link",
                "add",
                wire,
                "netns",
                hub,
                "type",
                "veth",
                "peer",
                "eth0",
                "netns",
                space,
            )
            ip("-n", hub, "link", "set", wire, "master", "bridge0", "up")
            ip("-n", space, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space, "link", "set", device, "up")
            lines.append(f"10.77.0.{number} {self.hosts[name]}")
        (self._folder / "hosts").write_text("\n".join(lines) + "\n")

    def _space(self, name: str) -> str:
        space = f"{self._mark}-{name}"
        ip("netns", "add", space)
        self._made.append(space)
        return space

    def shell(self, name: str) -> list[str]:
        shell = ["bash", "--norc", "--noprofile"]
        if not self.separate:
            return shell
        # In the mount namespace that ip netns exec makes: this machine's own file
        # stays.
        hosts = f"mount --bind '{self._folder / 'hosts'}' /etc/hosts && exec \"$@\""
        return [
            "ip",
            "netns",
            "exec",
            f"{self._mark}-{name}",
            "bash",
            "-c",
            hosts,
            "-",
            *shell,
        ]

    def here(self, text: str) -> str:
        if self.separate:
            return text
        for number, host in enumerate(self.hosts.values(), 1):
            text = text.replace(host, f"127.0.1.{number}")
        return re.sub(
            rf"\b({'|'.join(PORTS)})\b", lambda found: self._ports[found[1]], text
        )

    def close(self) -> None:
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._made.pop()], check=False)


class Organisation:
    def __init__(self, name: str, folder: Path, network: Network) -> None:
        self.name, self.folder, self._network = name, folder, network
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        sources = str(Path(precad.__file__).parents[1])
        own = {
            "OMP_NUM_THREADS": "1",
            "PATH": path,
            "PYTHONPATH": sources,
            "HOME": str(folder),
        }
        self._shell = subprocess.Popen(
            network.shell(name),
            start_new_session=True,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=1,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=os.environ | own,
        )
        self.seen: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._shell.stdout
        for line in self._shell.stdout:
            self._lines.put(line.rstrip("\n"))

    def type(self, command: str) -> list[str]:
        assert self._shell.stdin
        prompt = f"prompt-{secrets.token_hex(8)}"
        self._shell.stdin.write(f"{self._network.here(command)}\necho {prompt} $?\n")
        self._shell.stdin.flush()
        said: list[str] = []
        status, listens = "", not command.startswith("precad serve")
        while not (status and listens):
            try:
                line = self._lines.get(timeout=DEADLINE_S)
            except queue.Empty:
                silent = (self.name, command, "says nothing more", said[-40:])
                raise AssertionError(silent) from None
            if prompt in line:
                status = line.rpartition(" ")[2]
                continue
            listens |= " on port " in line
            said.append(line)
        self.seen += [f"$ {command}", *said]
        assert status == "0", (self.name, command, status, said[-40:])
        return said

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(self._network.here(text), encoding="utf-8")

    def close(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        # All that it started is dead with it, so the pipe ends.
        self._reading.join(DEADLINE_S)
        with self._shell:
            pass


@contextmanager
def organisations(
    folder: Path, *, apart: bool = True
) -> Iterator[tuple[dict[str, Organisation], Network]]:
    post = folder / "post"
    post.mkdir()
    with ExitStack() as closing:
        network = Network(folder, apart=apart)
        closing.callback(network.close)
        found = {}
        for name in NAMES:
            own = folder / name
            own.mkdir()
            (own / "post").symlink_to(post)
            found[name] = Organisation(name, own, network)
            closing.callback(found[name].close)
        yield found, network
