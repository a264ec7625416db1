# %% [markdown]
# # A model and a loss of your own
#
# Days that a patient will stay, from four measurements: no classes, so another loss
# than cross-entropy, and a module of one's own. Any torch module does whose layers
# treat records one by one, and any loss that torch can differentiate for one record.
# The data are made here.

# %%
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import precad
from precad.client import model_section
from precad.common.task import Task

rng = np.random.default_rng(1)


def ward(count):
    """Age, pressure, fever and urgency of so many patients, and their days."""
    x = rng.normal((60, 130, 37.5, 0.5), (15, 20, 0.8, 0.3), (count, 4)).astype(
        np.float32
    )
    days = 4 + 0.08 * (x[:, 0] - 60) + 1.5 * np.maximum(x[:, 2] - 37.5, 0) + 2 * x[:, 3]
    return x, np.maximum(days + rng.normal(0, 1, count), 0).astype(np.float32)


owners = {f"ward-{n}": ward(600) for n in range(1, 6)}
held_out = ward(1000)

# %% [markdown] Centres and scales are buffers of the model: fixed numbers from a
# textbook, the same for all, never computed from the records. Only parameters are
# trained.


# %%
class Days(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("centre", torch.tensor([60.0, 130.0, 37.5, 0.5]))
        self.register_buffer("scale", torch.tensor([15.0, 20.0, 1.0, 0.5]))
        self.hidden, self.out = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return (
            5
            + 3
            * self.out(torch.tanh(self.hidden((x - self.centre) / self.scale)))[:, 0]
        )


def robust(outputs, targets):
    """Huber's loss: a patient who stays for a year doesn't pull like 365 others."""
    return functional.huber_loss(outputs, targets, delta=2.0)


# %% [markdown]
# ## Try it in a simulation

# %%
task = Task.parse(
    {
        "name": "days",
        "model": model_section(Days(), architecture="days", initial="uniform"),
        "privacy": {
            "record_clip": 1.0,
            "client_clip": 200.0,
            "noise_multiplier": 2.0,
            "record_rate": 0.2,
            "client_rate": 1.0,
        },
        "training": {"learning_rate": 1.0, "rounds": 60},
        "enrolment": {"clients": 5, "max_expected_records": 240.0},
        "fractional_bits": 16,
    }
)
training = precad.simulate(task, owners, Days(), loss=robust, seed=1)
epsilon, _ = training.epsilon(60)


def error(model):
    """Mean error in days on patients that nobody trained on."""
    with torch.no_grad():
        return (
            (model(torch.from_numpy(held_out[0])) - torch.from_numpy(held_out[1]))
            .abs()
            .mean()
        )


guess = np.abs(held_out[1] - np.median(held_out[1])).mean()
model = training.load_into(Days())
print(
    f"off by {error(model):.2f} days at ε = {epsilon:.2f}; always the median:"
    f" {guess:.2f}"
)

# %% [markdown]
# ## And for real
#
# Each owner gives the same two: in Python `DataOwner(…, model=Days(), loss=robust)`, in
# a settings file `model = "days:Days"` and `loss = "days:robust"`. `precad task check`
# tries them with its records before anything is sent.
# [hospital_csv.py](hospital_csv.py) is such a training.
