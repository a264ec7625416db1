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
from precad.common.task import Task
from precad.simulation.datasets import demo_task, load

data = load("digits")
task = Task.parse(demo_task(data, "logistic", clients=10, rounds=20))


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
    values = demo_task(data, "logistic", clients=10, rounds=20)
    values["privacy"]["client_clip"] = clip
    # The same step for a shorter sum, a little of the way.
    values["training"]["learning_rate"] *= (20.0 / clip) ** 0.5
    runs = [
        precad.simulate(
            Task.parse(values), data, seed=1, attack=backwards, attackers=bad
        ).accuracy
        for bad in (0, 3)
    ]
    print(
        f"C = {clip:4.1f}: {runs[0]:.1%} without, {runs[1]:.1%} with three bad owners"
    )
