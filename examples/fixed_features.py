# %% [markdown]
# # Fixed features beside a CNN, at the same ε
#
# What an owner computes of one record alone, by a fixed rule, costs no privacy: the
# record that is protected is then the computed one. Here the rule is histograms of
# oriented gradients (Dalal and Triggs, CVPR 2005, in a simple form): nothing is
# learned, so no noise is spent on learning it. A logistic regression on top is easy to
# train under noise.
#
# Everything is simulated, on public images: scikit-learn's digits, or MNIST with
# `python fixed_features.py --data FOLDER --rounds 400 --rates 30 5` where you have its
# files. Both models get the same ε.

# %%
import argparse
import json
import sys
from pathlib import Path

import numpy as np
from torch import nn

import precad
from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import least_noise_multiplier
from precad.client import model_section
from precad.common.task import Task
from precad.simulation.datasets import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="folder with MNIST's files")
parser.add_argument("--rounds", type=int, default=40)
parser.add_argument(
    "--rates", type=float, nargs=2, default=(8.0, 4.0), help="η of each model"
)
parser.add_argument(
    "--models", nargs="+", default=("features", "cnn"), help="one alone, or both"
)
parser.add_argument(
    "--out", type=Path, help="a file for the figures; what it has of others stays"
)
# In a notebook the arguments are the kernel's.
given = parser.parse_args([] if "ipykernel" in sys.modules else None)

if given.data is None:
    data = load("digits")
else:
    # The repository's readers lie beside its examples, wherever this is started.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from research.datasets import load as load_files

    data = load_files("mnist", given.data)
side = 8 if given.data is None else 28
train, test = (x.reshape(-1, 1, side, side) for x in (data.train_x, data.test_x))
print(f"{data.name}: {len(train)} images to train on, {len(test)} held out")


# %% [markdown]
# ## The features
#
# The gradient of the grey values at each pixel, its length counted under the two
# nearest of eight directions, averaged over small cells; then the whole at length 4.
# Each image becomes its own features; no mean or scale of the data set goes in.


# %%
def oriented_gradients(images, directions=8, length=4.0):
    """Features `[n, cells · cells · directions]` of grey images `[n, 1, s, s]`."""
    count, _, side, _ = images.shape
    cell = 2 if side <= 8 else 4
    down, across = np.gradient(images[:, 0], axis=(1, 2))
    strength, angle = np.hypot(down, across), np.arctan2(down, across)
    place = angle / (2 * np.pi) * directions % directions
    lower, part = np.floor(place) % directions, place % 1
    layers = [
        strength * ((lower == k) * (1 - part) + ((lower + 1) % directions == k) * part)
        for k in range(directions)
    ]
    split = (count, directions, side // cell, cell, side // cell, cell)
    found = np.sqrt(np.stack(layers, 1).reshape(split).mean((3, 5))).reshape(count, -1)
    norms = np.linalg.norm(found, axis=1, keepdims=True)
    return (length * found / np.maximum(norms, 1e-6)).astype(np.float32)


features = oriented_gradients(train)
print(f"{features.shape[1]} features an image")

# %% [markdown]
# ## Two models, one ε
#
# ε = 3 for each record (δ = 1e-5) against one curious server; ten owners; a twentieth
# of the records a round, a fifth of the few digits. The accountant says how much noise
# that takes.

# %%
EPSILON, OWNERS = 3.0, 10
RATE = 0.2 if given.data is None else 0.05
noise = least_noise_multiplier(
    lambda sigma: poisson_gaussian(
        rate=RATE, noise_multiplier=sigma, count=given.rounds
    ),
    epsilon=EPSILON,
    delta=1e-5,
)


def trained(name, net, learning_rate, inputs, held_out):
    """A simulated training of `net`; prints and keeps its figures."""
    sample = RATE * len(inputs) / OWNERS
    task = Task.parse(
        {
            "name": name,
            "model": model_section(
                net, architecture=name, initial="uniform" if name == "cnn" else "zeros"
            ),
            "privacy": {
                "record_clip": 1.0,
                "client_clip": 1.5 * sample,
                "noise_multiplier": noise,
                "record_rate": RATE,
                "client_rate": 1.0,
                "delta": 1e-5,
            },
            "training": {"learning_rate": learning_rate, "rounds": given.rounds},
            "enrolment": {"clients": OWNERS, "max_expected_records": 2 * sample},
            "fractional_bits": 16,
        }
    )
    found = precad.simulate(
        task, (inputs, data.train_y), net, seed=1, test=(held_out, data.test_y)
    )
    epsilon, _ = found.epsilon(given.rounds)
    seconds = sum(each.seconds for each in found.rounds)
    print(
        f"{name}: {task.dimension} weights, {found.accuracy:.1%} of held-out images "
        f"at ε = {epsilon:.2f}"
    )
    said = {
        "weights": task.dimension,
        "learning_rate": learning_rate,
        "rounds": given.rounds,
    }
    said |= {
        "noise_multiplier": noise,
        "accuracy": found.accuracy,
        "seconds": round(seconds),
    }
    figures[f"{name}, {given.rounds} rounds"] = said


figures = {}

if "features" in given.models:
    linear = nn.Linear(features.shape[1], 10)
    held_out = oriented_gradients(test)
    trained("features", linear, given.rates[0], features, held_out)

# %%
large = given.data is not None
cnn = nn.Sequential(
    nn.Conv2d(
        1, 8, 5 if large else 3, stride=2 if large else 1, padding=2 if large else 1
    ),
    nn.Tanh(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1),
    nn.Tanh(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * (9 if large else 4), 10),
)
if "cnn" in given.models:
    trained("cnn", cnn, given.rates[1], train, test)

# %% [markdown] More held-out images are right by the features. They are no rule for
# every data set: they suit strokes and shapes. What counts is that a person chose them
# without looking at the records. On MNIST at the same ε,
# [docs/when-it-pays-off.md](../docs/when-it-pays-off.md) has the figures.

# %%
if given.out is not None:
    # The repository's benchmarks lie beside its examples, wherever this is started.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from benchmarks.rounds.hardware import hardware

    kept = (
        json.loads(given.out.read_text(encoding="utf-8")) if given.out.exists() else {}
    )
    said = {"data": data.name, "epsilon": EPSILON, "delta": 1e-5}
    said |= {
        "record_rate": RATE,
        "owners": OWNERS,
        "models": kept.get("models", {}) | figures,
    }
    text = json.dumps(said | {"hardware": hardware()}, indent=1, ensure_ascii=False)
    given.out.write_text(text + "\n", encoding="utf-8")
