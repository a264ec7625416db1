"""The one certifier: guarantees as curves, and what follows from them (docs/certificates.md).

A guarantee (exact, Rényi, (ε, δ), Gaussian) bounds any score after k additions or deletions.
`certify_predictions`, `attack_bounds`, `fewest_attackers` and `certify_smoothing` are all that is
built on it. Pure mathematics: arrays and parameters in, arrays and results out.
"""
