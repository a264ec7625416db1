"""A noisy cross-table's χ² rejects as seldom as it says, and where it should."""

import numpy as np
import pytest

from precad.client.independence import independence

ROWS, COLUMNS = [0.5, 0.3, 0.2], [0.6, 0.25, 0.15]


@pytest.mark.parametrize(
    ("records", "noise"), [(300, 10.0), (3000, 10.0), (3000, 60.0)]
)
def test_a_noisy_table_of_independent_columns_is_seldom_called_dependent(
    records: int, noise: float
) -> None:
    draw = np.random.default_rng(records)
    chances = np.outer(ROWS, COLUMNS)
    rejected = 0
    for _ in range(300):
        table = draw.multinomial(records, chances.ravel()).reshape(3, 3)
        noisy = table + draw.normal(0, noise, table.shape)
        rejected += independence(noisy, noise=noise) <= 0.05
    # Of 300 releases 5 %, and three deviations more.
    assert rejected <= 26


def test_a_dependent_table_is_called_so_and_the_same_each_time() -> None:
    table = np.array([[800.0, 200], [100, 900]])
    first = independence(table, noise=15)
    assert first == independence(table, noise=15) == 1 / 2000
    assert independence(table.T, noise=1e4) > 0.05


def test_a_table_without_records_is_not_called_dependent() -> None:
    assert independence(np.zeros((2, 3)), noise=5) > 0.5
    assert independence(np.full((2, 2), -40.0), noise=5) > 0.0
