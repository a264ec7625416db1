# %% [markdown]
# # An attack study in ten lines
#
# Ten owners train on scikit-learn's digits; some of them follow the others' mean
# backwards, as far as the servers let them. An attack is a function: the bad owners'
# honest updates go in, what they submit instead comes out. The servers' rule is the
# real one: a vector counts if its norm is within the bound, whatever it says. All of it
# is simulated, in one process, on public data.

# %%
import matplotlib.pyplot as plt
import numpy as np

import precad
from precad.client import model_section
from precad.client.gradients.torch_models import logistic
from precad.common.task import Task
from precad.simulation.datasets import load

data = load("digits")
settings = {
    "name": "digits",
    "model": model_section(logistic(64, 10), architecture="logistic"),
    "privacy": {
        "record_clip": 1.0,
        "client_clip": 20.0,
        "noise_multiplier": 2.0,
        "record_rate": 0.2,
        "client_rate": 1.0,
    },
    "training": {"learning_rate": 6.0, "rounds": 20},
    "enrolment": {
        "clients": 10,
        "max_expected_records": 60.0,
        "planned_units": len(data.train_y),
    },
}
task = Task.parse(settings)


def backwards(updates, view, strength=0.999):
    everybody = view.decode(np.concatenate([view.others, updates]))
    mean = everybody.mean(axis=0)
    longest = strength * view.task.privacy.client_clip
    worst = -mean / max(np.linalg.norm(mean), 1e-12) * longest
    return view.encode(np.tile(worst, (len(updates), 1)))


for bad in range(4):
    found = precad.simulate(task, data, seed=1, attack=backwards, attackers=bad)
    print(f"{bad} of 10 bad: {found.accuracy:.1%}")
    plt.plot(
        [row.number for row in found.rounds], [row.accuracy for row in found.rounds]
    )
plt.legend([f"{bad} of 10 bad" for bad in range(4)])
plt.xlabel("round")
_ = plt.ylabel("accuracy, simulated")

# %% [markdown] The bound is what limits them: the same vector at a hundred times the
# length changes nothing, because no update beyond the bound counts.


# %%
def too_long(updates, view):
    return backwards(updates, view, strength=100)


found = precad.simulate(task, data, seed=1, attack=too_long, attackers=3)
print(
    f"3 of 10 beyond the bound: {found.accuracy:.1%}, rejected"
    f" {found.rounds[-1].rejected}"
)

# %% [markdown] A tighter bound, C, limits them more, until it takes the honest updates
# with it: the trade that `precad plan` shows, and `precad certify` turns into a
# guarantee.

# %%
for clip in (20.0, 5.0, 2.0):
    privacy = settings["privacy"] | {"client_clip": clip}
    # The same step for a shorter sum, a little of the way.
    step = 6.0 * (20.0 / clip) ** 0.5
    training = {"learning_rate": step, "rounds": 20}
    tighter = Task.parse(settings | {"privacy": privacy, "training": training})
    runs = [
        precad.simulate(tighter, data, seed=1, attack=backwards, attackers=bad).accuracy
        for bad in (0, 3)
    ]
    print(
        f"C = {clip:4.1f}: {runs[0]:.1%} without, {runs[1]:.1%} with three bad owners"
    )
