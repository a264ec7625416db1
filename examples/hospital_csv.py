# %% [markdown]
# # Three hospitals, a CSV file each
#
# Text and missing values in the tables, a torch model of one's own, and a real
# training: dealer, both servers and three owners are processes of this machine, with
# TLS, shares, noise and accounts. The patients are made up here. [The quick
# start](../docs/quick-start.md) does the same by hand.

# %%
import csv
import random
import subprocess
import sys
import tempfile
from pathlib import Path

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)


def precad(*words):
    """A command, in the folder; shows what it prints."""
    command = [sys.executable, "-m", "precad", *words]
    ended = subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    )
    print(ended.stdout.strip())


# %% [markdown]
# ## The tables

# %%
rng = random.Random(1)


def patient():
    age, pressure = rng.gauss(62, 14), rng.gauss(132, 20)
    unit = rng.choice(["surgery", "medicine", "icu", "ambulance"])
    risk = (
        (age - 62) / 14
        + (pressure - 132) / 20
        + (1 if unit in ("icu", "ambulance") else -1)
    )
    cells = [f"{age:.0f}", f"{pressure:.0f}", unit]
    cells = ["NA" if rng.random() < 0.04 else cell for cell in cells]
    return [*cells, "yes" if risk + rng.gauss(0, 0.3) > 0 else "no"]


def write(name, rows):
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["age", "pressure", "unit", "readmitted"], *rows])


for name in ("north", "south", "east"):
    write(f"{name}.csv", [patient() for _ in range(400)])
write("elsewhere.csv", [patient() for _ in range(500)])
print("".join((folder / "north.csv").open(encoding="utf-8").readlines()[:4]))

# %% [markdown]
# ## What everybody has alike
#
# How a row becomes numbers: constants from a textbook, never computed from the records.
# And a model that takes the five numbers that come of it.

# %%
_ = (folder / "columns.toml").write_text(
    """
target = { name = "readmitted", kind = "categorical", levels = ["no", "yes"] }
columns = [
  { name = "age", centre = 60, scale = 20, fill = 60 },
  { name = "pressure", centre = 130, scale = 25, fill = 130 },
  { name = "unit", kind = "categorical", levels = ["surgery", "medicine"], fill_level = "other" },
]
""",
    encoding="utf-8",
)
_ = (folder / "nets.py").write_text(
    """
from torch import nn

def Net():
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
""",
    encoding="utf-8",
)

# %% [markdown] A task for three owners of 400 records, at most ε = 3 (δ = 1e-5) for
# each record; then keys and settings for every party, and whether a hospital's records
# fit the task.

# %%
task = ["--recipe", "columns.toml", "--model", "nets:Net", "--records", "3x400"]
precad("task", "new", "task.toml", *task, "--epsilon", "3", "--rounds", "15")
files = [
    word for name in ("north", "south", "east") for word in ("--data", f"{name}.csv")
]
precad("setup", "run", "--task", "task.toml", "--model", "nets:Net", *files)
precad("task", "check", "task.toml", "--data", "north.csv", "--model", "nets:Net")

# %% [markdown]
# ## The training
#
# The dealer and both servers in the background, then the three owners until it is over.

# %%
servers = []
try:
    for part, name in (("dealer", "dealer"), ("b", "server-b"), ("a", "server-a")):
        command = [
            sys.executable,
            "-m",
            "precad",
            "serve",
            part,
            "--config",
            f"run/{name}.toml",
        ]
        with (folder / f"{name}.log").open("w") as log:
            servers.append(
                subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            )
    settings = [f"run/{name}.toml" for name in ("north", "south", "east")]
    precad(
        "join", "--quiet", *(word for file in settings for word in ("--config", file))
    )
finally:
    for server in servers:
        server.terminate()
    for server in servers:
        server.wait()

# %% [markdown]
# ## What each hospital has now
#
# The model, on patients whom nobody trained on; and its own account.

# %%
precad("evaluate", "elsewhere.csv", "--config", "run/south.toml")
precad("ledger", "mine", "run/state/south")

# %%
temporary.cleanup()
