# %% [markdown]
# # Three organisations on one machine
#
# Two of them run a server, the third runs the dealer, and all three train on records of
# their own: who could look into an update would need the help of a competitor. Each
# organisation has a folder here in a machine's place, with its own keys, settings,
# state and limit; to move one to a machine of its own, copy its folder and change the
# addresses. Processes, TLS, shares, noise and accounts are real; the records are public
# (breast cancer, from scikit-learn).

# %%
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from precad.simulation.datasets import load

temporary = tempfile.TemporaryDirectory()
root = Path(temporary.name)
NAMES = ("north", "south", "east")


def precad(*words):
    """A command; shows what it prints."""
    command = [sys.executable, "-m", "precad", *map(str, words)]
    ended = subprocess.run(
        command, cwd=root, check=True, stdout=subprocess.PIPE, text=True
    )
    print(ended.stdout.strip())


data = load("breast-cancer")
shares = np.array_split(np.arange(len(data.train_y)), 3)
for name, mine in zip(NAMES, shares, strict=True):
    (root / name).mkdir()
    np.savez(root / name / "records.npz", x=data.train_x[mine], y=data.train_y[mine])
    np.savez(root / name / "held-out.npz", x=data.test_x, y=data.test_y)

# %% [markdown]
# ## What they agree on
#
# The task, and whose keys count. Each owner makes its own key, so that nobody else ever
# has it; the operator of the authority sees a request and gives a certificate.

# %%
precad(
    *(
        "task",
        "new",
        "task.toml",
        "--architecture",
        "logistic",
        "--features",
        30,
        "--classes",
        2,
    ),
    *(
        "--records",
        ",".join(str(len(mine)) for mine in shares),
        "--epsilon",
        3,
        "--rounds",
        8,
    ),
    *("--record-rate", 0.2),
)
precad("keys", "init", "keys", "--clients", 0)
for name in NAMES:
    precad("keys", "request", f"{name}/identity", "client", name)
    precad(
        "keys",
        "issue",
        "keys",
        "client",
        name,
        "--request",
        f"{name}/identity/request.pem",
    )
    for file in (root / "keys" / name).iterdir():
        file.rename(root / name / "identity" / file.name)

# %% [markdown]
# ## What each sets for itself
#
# East's limit is lower than the others'. Its process keeps to it, whatever the servers
# ask for.

# %%
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
a, b, dealer = (f"127.0.0.1:{each.getsockname()[1]}" for each in held)
for each in held:
    each.close()
PARTIES = {
    "east/dealer": f'listen = "{dealer}"',
    "north/server-a": f'listen = "{a}"\nserver_b = "{b}"\ndealer = "{dealer}"',
    "south/server-b": f'listen = "{b}"\ndealer = "{dealer}"',
}
for party, settings in PARTIES.items():
    place, name = party.split("/")
    (root / place / name).mkdir()
    state = "" if name == "dealer" else f'state = "{name}"\nlinger = 600.0\n'
    (root / f"{party}.toml").write_text(
        f'task = "../task.toml"\nidentity = "../keys/{name}"\n{state}{settings}\n'
    )
for name, limit in zip(NAMES, (6.0, 6.0, 2.4), strict=True):
    (root / name / "owner.toml").write_text(f"""
client = "{name}"
task = "../task.toml"
identity = "identity"
server_a = "{a}"
server_b = "{b}"
data = "records.npz"
held_out = "held-out.npz"
state = "owner"
epsilon_limit = {limit}
""")

# %% [markdown]
# ## The training
#
# Every part is a process of its own.

# %%
running = []


def start(*words):
    command = [sys.executable, "-m", "precad", *words]
    with (root / f"log-{len(running)}").open("w") as log:
        running.append(subprocess.Popen(command, cwd=root, stdout=log, stderr=log))
    return running[-1]


try:
    for party in PARTIES:
        place, name = party.split("/")
        start("serve", name.removeprefix("server-"), "--config", f"{party}.toml")
    owners = {name: start("join", "--config", f"{name}/owner.toml") for name in NAMES}
    for name, owner in owners.items():
        # 3: its own limit ended its part, and the training goes on.
        expected = 3 if name == "east" else 0
        assert owner.wait(900) == expected, (
            root / f"log-{running.index(owner)}"
        ).read_text()
finally:
    for process in running:
        process.terminate()
    for process in running:
        process.wait()

# %% [markdown]
# ## What each has afterwards
#
# Its model, its own account, and the rounds as it saw them. East was there until its
# limit.

# %%
for name in NAMES:
    rounds = (root / name / "owner" / "history.csv").read_text().splitlines()
    counted = sum(row.split(",")[2] == "True" for row in rounds[1:])
    print(f"{name}: counted in {counted} rounds")
    precad("evaluate", f"{name}/held-out.npz", "--config", f"{name}/owner.toml")
precad("ledger", "mine", "east/owner")

# %%
temporary.cleanup()
