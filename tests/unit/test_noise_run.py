"""The long run of the noise's goodness of fit: broken off it goes on, and its figures are kept."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.rig import noise_run
from tests.rig.noise_fit import Bins, Tally

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "noise_fit.json"


def test_a_run_that_is_broken_off_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, counted = tmp_path / "fit.json", []
    usual = noise_run.count

    def count(tally: Tally, samples: int) -> None:
        counted.append((tally.deviation, tally.samples))
        if len(counted) == 6:
            raise KeyboardInterrupt
        usual(tally, samples)

    monkeypatch.setattr(noise_run, "count", count)
    monkeypatch.setattr(noise_run, "PIECE", 10_000)
    monkeypatch.setattr(noise_run, "WRITTEN", 1)
    monkeypatch.setattr(noise_run, "DEVIATIONS", (3.3, 1024.0))
    monkeypatch.setattr(sys, "argv", ["noise_run", "--samples", "40000", "--output", str(output)])
    with pytest.raises(KeyboardInterrupt):
        noise_run.main()
    broken_off = json.loads(output.read_text())
    assert [each["samples"] for each in broken_off["judged"]] == [40_000]
    assert broken_off["counting"]["samples"] == 10_000
    noise_run.main()
    assert counted[5] == counted[6] == (1024.0, 10_000)
    assert len(counted) == 9
    judged = json.loads(output.read_text())["judged"]
    assert [(each["deviation"], each["samples"]) for each in judged] == [
        (3.3, 40_000),
        (1024.0, 40_000),
    ]


def test_a_sampler_that_does_not_fit_is_said_not_to() -> None:
    tally = Tally(1024.0)
    wrong = np.rint(np.random.default_rng(0).normal(0, 1036, 200_000)).astype(np.int64)
    tally.add(wrong, Bins.of(1024.0))
    assert noise_run.judged(tally)["fits"] is False


def test_the_kept_figures_are_of_a_whole_run_that_fits() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert [each["deviation"] for each in kept["judged"]] == list(noise_run.DEVIATIONS)
    assert all(each["fits"] and each["samples"] == 10**8 for each in kept["judged"])
