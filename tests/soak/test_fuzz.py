"""30,000 inputs to each parser of bytes from outside, guided by coverage: over 10^6 in all.

No input may take 10 s, and no process may grow beyond 2 GiB.
"""

import re
from pathlib import Path

import pytest
from tests.fuzz.targets import TARGETS
from tests.rig.commands import python

PROGRAM = Path(__file__).parents[1] / "fuzz" / "run.py"
RUNS = 30_000
LIMITS = (
    "-seed=1",
    "-max_len=4096",
    "-timeout=10",
    "-rss_limit_mb=2048",
    "-print_final_stats=1",
)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TARGETS)
def test_every_input_ends_in_its_value_or_in_an_error_of_ours(
    name: str, tmp_path: Path
) -> None:
    # Targets import gRPC before precad, which then can't ask for TLS 1.3 itself.
    env = {"GRPC_SSL_CIPHER_SUITES": "ECDHE-PSK-AES128-CBC-SHA"}
    options = (f"-runs={RUNS}", f"-artifact_prefix={tmp_path}/", *LIMITS)
    ended = python(PROGRAM, name, *options, env=env, errors="replace")
    # What it wrote is here, and the input that it kept in tmp_path.
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    executed = re.search(r"stat::number_of_executed_units:\s+(\d+)", ended.stderr)
    assert executed
    assert int(executed[1]) >= RUNS
    assert RUNS * len(TARGETS) > 10**6
