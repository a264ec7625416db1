"""A Dask cluster of two nodes on this machine: says its address, kills a node for each line."""

import subprocess
import sys
import tempfile

from distributed import Client

_NODES = 2
_LISTEN = ("--host", "127.0.0.1", "--no-dashboard")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = ("--scheduler-file", f"{folder}/scheduler.json")
        processes = [_started("scheduler", *_LISTEN, *found, "--port", "0")]
        try:
            # Without a nanny, which would start a killed one again.
            own = (
                *found,
                "--no-nanny",
                "--nthreads",
                sys.argv[1],
                "--local-directory",
                folder,
            )
            processes += [_started("worker", *_LISTEN, *own) for _ in range(_NODES)]
            with Client(scheduler_file=found[1]) as client:
                client.wait_for_workers(_NODES)
                sys.stdout.write(f"{client.scheduler.address}\n")
                sys.stdout.flush()
            for _ in sys.stdin:
                lost = processes.pop()
                lost.kill()
                lost.wait()
                sys.stdout.write("done\n")
                sys.stdout.flush()
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _started(part: str, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", f"distributed.cli.dask_{part}", *options]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    main()
