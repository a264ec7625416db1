"""Imports once what every part of a deployment needs, and forks each process from there.

It reads JSON lines, {"key", "arguments", "environment", "log"}, and writes {"started", "pid"} and
{"ended", "status"}. A child is what ``python -m …`` with these arguments would be, without the
seconds of its imports. When the input ends, so do the children and this process.
"""

import json
import os
import runpy
import select
import signal
import sys

import precad.cli.main
import precad.client.settings
import precad.common.aggregator.validate.by_shares
import precad.dealer.process
import precad.server_a.process
import precad.server_b.process  # noqa: F401

POLL_S = 0.01


def main() -> None:
    """Fork as told."""
    children: dict[int, str] = {}
    unread = b""
    while True:
        readable, _, _ = select.select([0], [], [], POLL_S if children else None)
        if readable:
            data = os.read(0, 1 << 16)
            if not data:
                break
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    be(order["arguments"], order["environment"], order["log"])
                children[pid] = order["key"]
                say(started=order["key"], pid=pid)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            say(ended=children.pop(pid), status=os.waitstatus_to_exitcode(status))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def be(arguments: list[str], environment: dict[str, str], log: str) -> None:
    """Become the process; doesn't return."""
    status = 1
    try:
        nothing, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(nothing, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(environment)
        module, *rest = arguments
        sys.argv = [module, *rest]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = end.code or 0
        else:
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 -- shown in the child's log
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def say(**what: object) -> None:
    """One line to whoever gives the orders."""
    os.write(1, json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    main()
