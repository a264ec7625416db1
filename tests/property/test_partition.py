"""Partitions: every record is with exactly one client."""

from pathlib import Path

import numpy as np
import pytest
from examples.demo.local_processes import write_client_data
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from research.datasets.partition import dirichlet, iid

from precad.client.records.read_records import read_client_data
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.simulation.datasets import Partition, shards

labels = st.lists(st.integers(0, 9), min_size=60, max_size=120).map(
    lambda values: np.array(values, np.int64)
)
clients = st.integers(1, 15)
seeds = st.integers(0, 2**31)


@given(labels, clients, seeds, st.integers(1, 4), st.sampled_from([0.01, 0.5, 100.0]))
def test_every_record_is_dealt_once_and_shards_and_a_random_order_evenly(
    y: NDArray[np.int64], n: int, seed: int, each: int, alpha: float
) -> None:
    for parts, spread in (
        (shards(y, clients=n, shards_per_client=each, seed=seed), each),
        (iid(len(y), n, seed), 1),
        (dirichlet(y, n, alpha, seed), len(y)),
    ):
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
        assert len(parts) == n
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= spread
    again = shards(y, clients=n, shards_per_client=each, seed=seed)
    assert [
        p.tolist() for p in shards(y, clients=n, shards_per_client=each, seed=seed)
    ] == [p.tolist() for p in again]


def test_shards_give_clients_few_labels_and_dirichlet_by_its_alpha() -> None:
    y = np.repeat(np.arange(10), 600)
    generator = np.random.default_rng(1)
    generator.shuffle(y)

    def mean_labels(parts: Partition) -> float:
        return float(np.mean([len(np.unique(y[part])) for part in parts]))

    assert mean_labels(shards(y, clients=100, shards_per_client=4, seed=0)) <= 4
    assert mean_labels(dirichlet(y, 10, 0.05, 0)) < 5
    assert mean_labels(dirichlet(y, 10, 100.0, 0)) == 10
    assert mean_labels(iid(len(y), 10, 0)) == 10


@pytest.mark.parametrize("each", [3, 0])
def test_impossible_shards_are_refused(each: int) -> None:
    with pytest.raises(Misconfiguration):
        shards(np.zeros(10, np.int64), clients=4, shards_per_client=each, seed=0)


def test_a_clients_file_is_read_back_and_one_of_another_form_is_refused(
    tmp_path: Path,
) -> None:
    x, y = np.ones((3, 1, 2), np.float32), np.array([0, 1, 2])
    path = write_client_data(tmp_path, ClientId("ward-3"), x, y)
    found = read_client_data(tmp_path / "ward-3.npz")
    assert ((found[0] == x).all(), (found[1] == y).all()) == (True, True)
    pickled = np.array([{"a": 1}], dtype=object)
    for arrays in ({"x": x}, {"x": x, "y": np.ones(2)}, {"x": pickled, "y": pickled}):
        np.savez(path, **arrays)
        with pytest.raises(Misconfiguration, match="data"):
            read_client_data(path)
    path.write_bytes(b"not an archive")
    for file in (path, tmp_path / "absent.npz"):
        with pytest.raises(Misconfiguration, match="can't be read"):
            read_client_data(file)
