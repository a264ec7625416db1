"""`python -m benchmarks.rounds`: what validation and rounds cost, beside the peers, in one run."""
