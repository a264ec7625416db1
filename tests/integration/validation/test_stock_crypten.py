"""The hole that validation closes: stock CrypTen accepts vectors that are far too long."""

import json
import math

import numpy as np
from tests.integration.validation.conftest import task_of, validate_both, validate_with_proofs
from tests.rig.commands import printed

from precad.common.errors import Rejection
from precad.common.ring import encode

DIMENSION = 1000
VECTORS = {
    "norm 29": [29.0] + [0.0] * (DIMENSION - 1),
    "norm 31": [31.0] + [0.0] * (DIMENSION - 1),
    "one 65536": [65536.0] + [0.0] * (DIMENSION - 1),
    "all 65536": [65536.0] * DIMENSION,
}
CHECK = """
import json, sys, torch
from precad.aggregator.validate.crypten_import import crypten

@crypten.mpc.run_multiprocess(world_size=2)
def check(vectors):
    accepted = {}
    for name, vector in vectors.items():
        x = crypten.cryptensor(torch.tensor(vector, dtype=torch.float64), src=0)
        excess = x.square().sum() - 30.0**2
        accepted[name] = bool((excess <= 0).get_plain_text().item() == 1)
    return accepted

results = check(json.loads(sys.argv[1]))
assert results[0] == results[1]
print(json.dumps(results[0]))
"""
"""PRECAD's check of C = 30 in stock CrypTen: two parties with its own communicator and provider, 16
fractional bits. For each vector whether x·x − C² ≤ 0."""


def test_stock_crypten_accepts_wrapped_norms_that_validation_rejects() -> None:
    assert round(math.hypot(*VECTORS["all 65536"])) == 2_072_430
    said = printed("-W", "ignore", "-c", CHECK, json.dumps(VECTORS))
    assert json.loads(said.splitlines()[-1]) == {
        "norm 29": True,
        "norm 31": False,
        "one 65536": True,
        "all 65536": True,
    }
    task = task_of(DIMENSION, client_clip=30.0, fractional_bits=16)
    encoded = [encode(np.array(vector), 16) for vector in VECTORS.values()]
    for validate in (validate_both, validate_with_proofs):
        assert validate(task, encoded) == (None, *[Rejection.NORM_EXCEEDED] * 3)
