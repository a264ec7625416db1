"""A real browser without a window: Chromium, driven over a pipe by its protocol (CDP).

From Debian's package. Where it is missing the tests that look at pages are skipped, but
under CI they fail.
"""

import base64
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

from tests.rig.commands import installed
from tests.rig.documents import Document
from tests.rig.leftovers import descendants, environment, processes
from tests.rig.waiting import readable_within, until

PATIENCE_S = 60.0
SHOTS = (  # A folder that keeps what tests see, for a person to look at
    "PRECAD_SCREENSHOTS"
)
WIDE, NARROW = (1280, 900), (360, 740)
Scheme = Literal["light", "dark"]
VIEWS: tuple[tuple[str, tuple[int, int], Scheme], ...] = (
    *(("light", WIDE, "light"), ("dark", WIDE, "dark")),
    *(("narrow", NARROW, "light"), ("narrow-dark", NARROW, "dark")),
)
OPTIONS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *(
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
    ),
    *(
        "--disable-component-update",
        "--disable-sync",
        "--force-color-profile=srgb",
        "--mute-audio",
    ),
)


@contextmanager
def browsing(folder: Path) -> Iterator["Page"]:
    """One with one page, until the block ends; profile and home lie in ``folder``."""
    home = f"HOME={folder}".encode()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Its sandbox wants rights of its own, and root has none of them.
    own = [
        f"--user-data-dir={folder / 'profile'}",
        *["--no-sandbox"] * (os.geteuid() == 0),
    ]
    program = installed("chromium", "chromium", "chromium-browser", "google-chrome")
    with (folder / "browser.log").open("wb") as log:
        # It reads its orders from descriptor 3 and answers on 4.
        shell = ("bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "bash")
        process = subprocess.Popen(
            [*shell, program, *OPTIONS, *own],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=(theirs_in, theirs_out),
            env={**os.environ, "HOME": str(folder)},
        )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(ours_in, ours_out, folder / "browser.log")
    finally:
        # Its children would outlive it for a moment, and write in a folder that goes
        # with the test.
        started = descendants(process.pid)
        process.kill()
        process.wait()
        started |= {pid for pid in processes() if home in environment(pid)}
        for pid in started & processes().keys():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(
            lambda: not started & processes().keys(),
            lambda: f"the browser's end: {started}",
        )
        os.close(ours_in)
        os.close(ours_out)


class Page:
    """Orders and answers are JSON objects before a zero byte; events are kept."""

    def __init__(self, reads: int, writes: int, log: Path) -> None:
        self._reads, self._writes, self._log = reads, writes, log
        self._unread, self._last, self._session = b"", 0, ""
        self._events: list[Document] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        # Every page is opened as on a first visit: nothing that one chose is
        # remembered.
        forget = "try { localStorage.clear() } catch {}"
        self._call("Page.addScriptToEvaluateOnNewDocument", source=forget)

    def _call(self, method: str, **parameters: object) -> Document:
        self._last += 1
        order: Document = {
            "id": self._last,
            "method": method,
            "params": parameters,
        }
        if self._session:
            order["sessionId"] = self._session
        os.write(self._writes, json.dumps(order).encode() + b"\0")
        said = self._heard(lambda said: said.get("id") == self._last)
        assert "error" not in said, (method, said["error"])
        return cast("Document", said["result"])

    def _heard(self, awaited: Callable[[Document], bool]) -> Document:
        """What is awaited; whatever comes before it is kept as an event."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" not in self._unread:
                left = deadline - time.monotonic()
                readable = left > 0 and readable_within(left, self._reads)
                data = os.read(self._reads, 1 << 20) if readable else b""
                assert data, (
                    f"the browser says nothing: {self._log.read_text(errors='replace')}"
                )
                self._unread += data
            text, _, self._unread = self._unread.partition(b"\0")
            said: Document = json.loads(text)
            if awaited(said):
                return said
            self._events.append(said)

    def open(
        self, address: str, size: tuple[int, int] = WIDE, scheme: Scheme = "light"
    ) -> None:
        width, height = size
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self.prefer(scheme)
        self._events.clear()
        went = self._call("Page.navigate", url=address)
        assert "errorText" not in went, went
        if all(event.get("method") != "Page.loadEventFired" for event in self._events):
            self._heard(lambda said: said.get("method") == "Page.loadEventFired")
        # Scripts that wait for the page do so here; their requests are seen too.
        self.run(
            "new Promise(done => requestAnimationFrame(() => setTimeout(done, 100)))"
        )

    def prefer(self, scheme: Scheme, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, program: str) -> Any:
        how = {"returnByValue": True, "awaitPromise": True}
        found = self._call("Runtime.evaluate", expression=program, **how)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, to: Path) -> bytes:
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {
            "x": 0,
            "y": 0,
            "width": size["width"],
            "height": size["height"],
            "scale": 1,
        }
        how = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        data = base64.b64decode(self._call("Page.captureScreenshot", **how)["data"])
        to.write_bytes(data)
        if SHOTS in os.environ:
            (Path(os.environ[SHOTS]) / to.name).write_bytes(data)
        return data

    def errors(self) -> list[str]:
        found = []
        for event in self._events:
            told = event.get("params", {})
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(str(told["exceptionDetails"]))
                case "Log.entryAdded" if told["entry"]["level"] == "error":
                    found.append(
                        f"{told['entry']['text']} ({told['entry'].get('url')})"
                    )
                case "Runtime.consoleAPICalled" if told["type"] in ("error", "assert"):
                    found.append(str(told["args"]))
        return found

    def requests(self) -> list[str]:
        sent = [
            e for e in self._events if e.get("method") == "Network.requestWillBeSent"
        ]
        return [event["params"]["request"]["url"] for event in sent]


def faults(page: Page) -> dict[str, list[str]]:
    look = Path(__file__).with_name("look.js").read_text(encoding="utf-8")
    return cast("dict[str, list[str]]", page.run(look))
