"""What `python -m benchmarks.rounds` calls right, the exponents that it fits, and its file."""

from pathlib import Path

import numpy as np
import pytest
from benchmarks.rounds.document import main_case, run
from benchmarks.rounds.fit import exponent, steps
from benchmarks.rounds.ours.system import task_of
from benchmarks.rounds.part import Message
from benchmarks.rounds.sample import require_right
from benchmarks.rounds.vectors import is_sum, vectors

from precad.common.errors import Misconfiguration, PeerViolation


def test_a_sum_with_noise_is_the_sum_of_all_vectors_and_of_no_others() -> None:
    task = task_of(1000, 10, 1)
    given = vectors(10, 1000, task.bound)
    noise = np.random.default_rng(1).normal(0, task.noise_units, 1000)
    total = np.sum(given, axis=0) + noise
    assert is_sum(total, given, task.noise_units)
    for left_out in given:
        assert not is_sum(total - left_out, given, task.noise_units)
        assert not is_sum(total + left_out, given, task.noise_units)
    one_off = 20 * task.noise_units * (np.arange(1000) == 7)
    assert not is_sum(total + one_off, given, task.noise_units)


@pytest.mark.parametrize("answer", [{"right": False}, {}, {"right": "yes"}])
def test_a_wrong_result_ends_the_run(answer: Message) -> None:
    require_right("fed_avg", {"right": True})
    with pytest.raises(PeerViolation, match="fed_avg gave a wrong result"):
        require_right("fed_avg", answer)


def test_the_exponent_of_a_power_law_is_found_and_a_fixed_cost_shows_in_the_first_step() -> None:
    law = {size: 3.0 * size**1.5 for size in (10, 100, 1000)}
    assert exponent(law) == pytest.approx(1.5)
    assert list(steps(law).values()) == pytest.approx([1.5, 1.5])
    fixed = {size: 100.0 + size for size in (10, 100, 10_000)}
    assert list(steps(fixed)) == ["10 to 100", "100 to 10000"]
    first, last = steps(fixed).values()
    assert first < 0.3
    assert 0.8 < last < 1
    assert exponent({10: 1.0}) is None


@pytest.mark.parametrize("other", ["no json", "{}", "[1]"])
def test_a_file_that_holds_something_else_is_not_written_over(tmp_path: Path, other: str) -> None:
    output = tmp_path / "notes.txt"
    output.write_text(other)
    with pytest.raises(Misconfiguration, match="holds something else"):
        run(main_case(9, 9, 1, slow=False, peers=False), output, lambda _what: None, series=False)
    assert output.read_text() == other
