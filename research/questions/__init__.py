"""Questions: what one noisy release of sums answers, without training.

Each file is one idea in NumPy and SciPy. A *block* is what a record adds for one
query: a vector whose L2 norm is at most the block's norm Δ. A release carries several
blocks, each with a share a_j of the record's norm (``split``), rounded to integers
(``release``). All that is answered is computed from the released sums, and each answer
has an interval (``interval``).
"""
