# %% [markdown]
# # Images with a small CNN
#
# A convolutional network, described for the task, simulated with ten owners.
# Scikit-learn's digits are on any machine; `python images.py --data FOLDER` takes MNIST
# where you have its files.
#
# Two things differ from training without privacy. Each record's gradient is clipped by
# itself, so layers that mix records (batch norm) are refused; group norm does. And
# bounded activations such as tanh train better than ReLU under clipping and noise
# (Papernot et al., AAAI 2021).

# %%
import argparse
import sys
from pathlib import Path

from torch import nn

import precad
from precad.client import model_section
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.simulation.datasets import load

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, help="folder with MNIST's files")
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


def small_cnn(norm=None):
    """Two convolutions; 2,082 weights whatever the side."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        norm or nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 8, 3, padding=1),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(72, 10),
    )


# %% [markdown] The task is what all parties hold alike. With more than one layer
# weights start at small random values that everybody expands from the same public seed.

# %%
OWNERS, RATE = 10, (0.3 if given.data is None else 0.05)
sample = RATE * len(train) / OWNERS
net = small_cnn()
task = Task.parse(
    {
        "name": "small-cnn",
        "model": model_section(net, architecture="small-cnn", initial="uniform"),
        "privacy": {
            "record_clip": 1.0,
            "client_clip": 1.5 * sample,
            "noise_multiplier": 2.5,
            "record_rate": RATE,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": 5.0, "rounds": 50},
        "enrolment": {"clients": OWNERS, "max_expected_records": 2 * sample},
        "fractional_bits": 16,
    }
)
training = precad.simulate(
    task, (train, data.train_y), net, seed=1, test=(test, data.test_y)
)
for row in training.table()[9::10]:
    print(f"round {row['round']}: {row['accuracy']:.1%}")
epsilon, _ = training.epsilon(50)
print(
    f"{task.dimension} weights, ε = {epsilon:.2f} for each record, one server curious"
)

# %% [markdown] A network that mixes records can't be clipped record by record; it is
# refused, and the refusal says what to use.

# %%
try:
    precad.simulate(task, (train, data.train_y), small_cnn(nn.BatchNorm2d(16)), seed=1)
except Misconfiguration as refusal:
    print(refusal)

# %% [markdown] The same module goes to the owners by `model = "nets:small_cnn"` in
# their settings, or as `model=` of `DataOwner`; the trained weights come back into it
# by `load_into`.

# %%
trained = training.load_into(small_cnn())
print(trained[-1].weight.shape)
