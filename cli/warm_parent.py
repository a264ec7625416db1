"""Imports once what every part of a deployment needs, and forks each process from there.

It reads JSON lines, {"key", "arguments", "environment", "log", "group"}, and writes
{"started", "pid"} and {"ended", "status"}. A child is what ``python -m …`` with these arguments
would be, without the seconds of its imports: it is split off before any key or connection is
there, from a process without threads, and shares nothing but code. When the input ends, so do the
children and this process.
"""

import gc
import json
import os
import runpy
import signal
import sys

import precad.aggregator.validate.check_by_shares
import precad.cli.main
import precad.dealer.process
import precad.server_a.process
import precad.server_b.process  # noqa: F401
from precad.client.owners_together import load_owner
from precad.common.clock import readable_within


def main() -> None:
    """Fork as told."""
    load_owner()
    # What is there now is searched for cycles no more: so the children go on sharing its memory.
    gc.collect()
    gc.freeze()
    # Ctrl-C in a terminal is for the children and for whoever gives the orders, who ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `timeout`, or a service manager, ends a whole group; the children have groups of their own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ended, told = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, str] = {}
    try:
        _obey(children, ended, told)
    except BrokenPipeError:
        # Whoever gave the orders was killed, and can't be told that a child has ended.
        pass
    finally:
        for pid in children:
            # With its own children, where it has come to have a group of its own.
            end = os.killpg if os.getpgid(pid) == pid else os.kill
            end(pid, signal.SIGKILL)


def _obey(children: dict[int, str], ended: int, told: int) -> None:
    """Until the input ends. Raises BrokenPipeError where nobody listens any more."""
    unread = b""
    while True:
        readable = readable_within(None, 0, ended)
        if ended in readable:
            os.read(ended, 1 << 16)
        if 0 in readable:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for pipe in (ended, told):
                        os.close(pipe)
                    be(order)
                children[pid] = order["key"]
                say(started=order["key"], pid=pid)
        while children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            say(ended=children.pop(pid), status=os.waitstatus_to_exitcode(status))


def be(order: dict[str, object]) -> None:
    """Become the process; doesn't return."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if order["group"]:
            os.setpgid(0, 0)
        log = os.open(str(order["log"]), os.O_WRONLY | os.O_APPEND)
        for number, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(descriptor, number)
        environment, arguments = order["environment"], order["arguments"]
        assert isinstance(environment, dict)
        assert isinstance(arguments, list)
        os.environ.clear()
        os.environ.update(environment)
        module = arguments[0]
        sys.argv = list(arguments)
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
