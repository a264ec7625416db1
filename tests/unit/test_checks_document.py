"""docs/cheating-server.md says what the committed costs of both checks say."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "checks.json").read_text("utf-8"))
PAGE = (ROOT / "docs" / "cheating-server.md").read_text("utf-8")
KEYS = 39_056


def test_the_table_is_the_result() -> None:
    sizes = MEASURED["measured"]
    assert [(each["clients"], each["dimension"]) for each in sizes] == [
        (n, d) for d in (10**4, 10**6) for n in (1, 10, 100)
    ]
    for each in sizes:
        cells = [str(each["clients"]), f"{each['dimension']:,}"]
        cells += [f"{each[check]['round_s']['median']:.2f}" for check in ("crypten", "fss")]
        for check in ("crypten", "fss"):
            cells.append(f"{sum(one['median'] for one in each[check]['cpu_s'].values()):.2f}")
        assert f"| {' | '.join(cells)} |" in PAGE


def test_the_bytes_are_the_results() -> None:
    for each in MEASURED["measured"]:
        bytes_by_link = each["fss"]["payload_bytes"]
        for server in ("a", "b"):
            of_one = bytes_by_link[f"dealer to server-{server}"] / each["clients"]
            assert KEYS < of_one <= 48 * 1024
            assert f"{of_one:,.0f} with what goes around them" in PAGE
        assert (each["crypten"]["exchanges_to_decide"], each["fss"]["exchanges_to_decide"]) == (
            15,
            1,
        )


def test_the_slowest_comparison_is_named() -> None:
    ratios = {
        (each["clients"], each["dimension"]): each["fss"]["round_s"]["median"]
        / each["crypten"]["round_s"]["median"]
        for each in MEASURED["measured"]
    }
    worst = max(ratios, key=lambda size: ratios[size])
    assert worst == (100, 10**4)
    assert f"{100 * (ratios[worst] - 1):.0f} % more" in PAGE
