"""Questions: what one noisy release of sums answers, without training.

Each file is one idea in NumPy and SciPy. A *block* is what a record adds for one
query: a vector whose L2 norm is at most the block's norm Δ. A release carries several
blocks, each with a share a_j of the record's norm (``split``), rounded to integers
(``release``). All that is answered is computed from the released sums, and each answer
has an interval (``interval``, ``ratio``).

| a query | its block | Δ |
| --- | --- | --- |
| count, shares, histogram, cross-table (``independence``) | ``one_hot`` | 1 |
| mean, deviation, missing | ``moments`` | 1 |
| the same by groups | ``grouped_moments`` | 1.12 |
| quantiles, box plot | ``prefix_sums``, ``quantiles``, ``grids`` | root of Σ c² |
| a classifier's evaluation | ``scores`` | 1 |
| a regression's | ``fit`` | 1.12 |
| Kaplan–Meier, log-rank | ``survival`` | as prefix sums |
| covariance, least squares | ``outer_product`` | √(α²r² + r⁴) |
| a head on frozen features | ``head`` | √(r⁴ + β²r²) |

``forecast`` says an answer's error before it is asked, and ``influence`` what bad
owners can move. ``evidence`` measures what is claimed of all this.
"""
