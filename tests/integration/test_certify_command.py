"""`precad certify` from files, from the folders of finished runs, and of a trained
model; and that the best attack (Neyman, Pearson) on a real mechanism lies inside the
certificates, and near.
"""

import json
import math
import re
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from research.printed.printed_certificates import theorem_8
from research.robustness.models import make
from tests.rig import certified, commands, tasks
from tests.rig.documents import Document

from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.losses import Shift, log_binomial, log_ratio
from precad.certify import guarantee, prediction
from precad.certify.group_guarantees import ExactGroups, RenyiGroups
from precad.cli import certify_tables, task_description
from precad.client.gradients.torch_models import model_section
from precad.common.arrays import Floats

MNIST_LIKE = [
    "--sampling-rate",
    str(128 / 60000),
    "--noise-multiplier",
    "3",
    "--rounds",
    "469",
]
SMALL = ["--sampling-rate", "0.05", "--noise-multiplier", "2", "--rounds", "20"]
CLIENTS = [
    "--loss",
    "0.2",
    "--sampling-rate",
    "0.1",
    "--noise-multiplier",
    "40",
    "--rounds",
    "50",
]
CLIENTS += ["--unit", "client"]
KNOWN = ["--loss", "0.2", *SMALL]

document = partial(commands.document, "certify")
said = partial(commands.said, "certify")
refused = partial(commands.refused, "certify")


@pytest.fixture
def votes(tmp_path: Path) -> Path:
    path = tmp_path / "votes.npy"
    np.save(
        path,
        np.array([[1000] + [0] * 9, [600, 350, 50] + [0] * 7, [510, 490] + [0] * 8]),
    )
    return path


def finished(folder: Path, **changed: object) -> Path:
    folder.mkdir()
    summary = {"accuracy": 0.9, "certificate_inputs": certified.RUN_INPUTS | changed}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def of_run(folder: Path, *more: object, loss: float = 0.2) -> Document:
    found: Document = document("loss", "--runs", folder, "--loss", loss, *more)
    return found


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    generator = np.random.default_rng(0)
    truth = np.arange(50) % 3
    folders = [finished(tmp_path / f"run-{i}") for i in range(30)]
    for folder in folders:
        wrong = generator.random(50) < 0.02
        np.save(folder / "predictions.npy", np.where(wrong, (truth + 1) % 3, truth))
        np.save(folder / "losses.npy", generator.uniform(0.1, 0.3, 50))
    return folders


BOUNDS = [1.0, 0.5, 0.2, 0.1, 0.05, 0.05]
HELD = [500, 250, 100, 50, 20, 80]
BY_SIZE = {"owner_bounds": BOUNDS, "owner_records": HELD, "noise_multiplier": 300.0}


def upper_of(found: Document, attackers: int) -> float:
    (row,) = (row for row in found["bounds"] if row["attackers"] == attackers)
    assert isinstance(row["upper"], float)
    return row["upper"]


def test_owners_count_with_the_bounds_that_their_sizes_give_them(
    tmp_path: Path,
) -> None:
    alike = finished(tmp_path / "alike", noise_multiplier=300.0)
    by_size = finished(tmp_path / "by-size", **BY_SIZE)
    equal = finished(tmp_path / "equal", **BY_SIZE | {"owner_bounds": [1.0] * 6})
    # The largest has C, as everybody has where bounds don't follow sizes.
    for k in (1, 2, 4):
        of_all, of_sizes, of_equals = (
            upper_of(of_run(folder), k) for folder in (alike, by_size, equal)
        )
        assert of_equals == of_all
        assert (of_sizes == of_all) if k == 1 else (0.2 < of_sizes < of_all)
    # Who joins may claim any size.
    added = of_run(by_size, "--change", "additions")
    assert upper_of(added, 4) == upper_of(of_run(alike, "--change", "additions"), 4)
    # Rényi's way holds as well.
    exact = upper_of(of_run(by_size), 4)
    assert exact <= upper_of(of_run(by_size, "--guarantee", "rdp"), 4) < 1


def test_owners_with_a_share_of_the_data_are_bounded_whoever_they_are(
    tmp_path: Path,
) -> None:
    folder = finished(tmp_path / "run", **BY_SIZE)
    found = of_run(folder, "--data-share", "0.2")
    # 200 of 1,000 records: three owners at most, and the largest two hold too much.
    assert found["owners_of_share"] == 3
    assert found["bounds"][-1]["attackers"] == 3
    assert upper_of(found, 3) < upper_of(of_run(folder), 3)
    assert upper_of(found, 1) < upper_of(of_run(folder), 1)
    words = said("loss", "--runs", folder, "--loss", "0.2", "--data-share", "0.2")
    moved = upper_of(found, 3) - 0.2
    line = re.search(
        r"Owners that claim 20 % of the data, at most 3 of them, move the loss by at most"
        r" ([0-9.]+)\.",
        words,
    )
    assert line is not None
    assert moved <= float(line[1]) <= moved + 1e-4
    # Absent ones of any size come on top.
    absent = of_run(folder, "--data-share", "0.2", "--absent", "1")
    assert upper_of(absent, 3) > upper_of(found, 3)
    for share in ("0.01", "2"):
        assert "data_share" in refused(
            "loss", "--runs", folder, "--loss", "0.2", "--data-share", share
        )
    nobody = finished(tmp_path / "nobody", **BY_SIZE | {"owner_records": [0] * 6})
    assert "owner_records" in refused("loss", "--runs", nobody, "--loss", "0.2")
    short = finished(tmp_path / "short", **BY_SIZE | {"owner_records": [5]})
    assert "owner_bounds" in refused("loss", "--runs", short, "--loss", "0.2")
    unknown = finished(tmp_path / "older")
    assert "who holds how much" in refused(
        "loss", "--runs", unknown, "--loss", "0.2", "--data-share", "0.2"
    )
    assert "--runs" in refused("loss", *KNOWN, "--data-share", "0.2")


def test_runs_of_other_sizes_are_certified_together_with_one_clip_for_all(
    tmp_path: Path,
) -> None:
    other = {"owner_records": [*HELD[:5], 81]}
    folders = [
        finished(tmp_path / "one", **BY_SIZE),
        finished(tmp_path / "other", **BY_SIZE | other),
    ]
    for folder in folders:
        np.save(folder / "losses.npy", np.full(50, 0.2))
    found = document("loss", "--runs", *folders)
    alike = finished(tmp_path / "alike", noise_multiplier=300.0)
    assert upper_of(found, 4) >= upper_of(of_run(alike), 4)
    share = ("--data-share", "0.2")
    assert "who holds how much" in refused("loss", "--runs", *folders, *share)


@pytest.mark.parametrize("kind", ["exact", "rdp", "adp", "gdp"])
def test_the_mnist_like_row_by_every_guarantee(votes: Path, kind: str) -> None:
    found = document("prediction", votes, *MNIST_LIKE, "--guarantee", kind)
    assert (found["asymptotic"], found["models"], found["abstained"]) == (
        kind == "gdp",
        1000,
        1,
    )
    sure, moderate, close = found["points"]
    assert (sure["label"], bool(close["abstained"]), "radius" in close) == (
        0,
        True,
        False,
    )
    assert 0 < moderate["radius"] < sure["radius"]
    assert (sure["radius"] == 147) or (
        kind in {"rdp", "adp"} and 90 < sure["radius"] < 147
    )


def test_what_else_is_asked_shrinks_radii_and_is_pictured(
    votes: Path, tmp_path: Path
) -> None:
    def first(*options: str) -> Document:
        found = document("prediction", votes, *MNIST_LIKE, *options)
        point: Document = found["points"][0]
        return point

    for options in (["--simultaneous"], ["--change", "replacements"]):
        assert 0 < first(*options)["radius"] < first()["radius"]
    one_sided = first("--change", "additions")
    assert one_sided["radius"] == one_sided["radius_additions"]
    assert "radius_deletions" not in one_sided
    picture, truth = tmp_path / "radius.png", tmp_path / "truth.csv"
    truth.write_text("0\n0\n1\n", encoding="utf-8")
    out = said(
        "prediction",
        votes,
        *SMALL,
        "--also",
        "gdp",
        "--labels",
        truth,
        "--plot",
        picture,
    )
    assert "not guaranteed" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_csv_labels_and_scores_give_the_same_as_npy(
    votes: Path, tmp_path: Path
) -> None:
    counts, csv, labels = (
        np.load(votes),
        tmp_path / "votes.csv",
        tmp_path / "labels.npy",
    )
    expected = document("prediction", votes, *SMALL)["points"]
    np.savetxt(
        csv, counts, delimiter=",", fmt="%d", header=",".join("abcdefghij"), comments=""
    )
    assert document("prediction", csv, *SMALL)["points"] == expected
    # A byte order mark costs no point.
    np.savetxt(csv, counts, delimiter=",", fmt="%d")
    csv.write_bytes(b"\xef\xbb\xbf" + csv.read_bytes())
    assert document("prediction", csv, *SMALL)["points"] == expected
    np.save(labels, np.stack([np.repeat(np.arange(10), row) for row in counts]))
    found = document(
        "prediction", labels, *SMALL, "--format", "labels", "--classes", "10"
    )
    assert found["points"] == expected
    # Scores too.
    scores = np.random.default_rng(2).dirichlet([9.0, 1.0], size=(4, 200))
    npy, options = tmp_path / "scores.npy", (*SMALL, "--interval", "bernstein")
    np.save(npy, scores)
    rows = [[p, m, *scores[p, m]] for p in range(4) for m in range(200)]
    np.savetxt(csv, np.array(rows)[::-1], delimiter=",")
    points = document("prediction", npy, *options)["points"]
    assert (
        document("prediction", csv, *options, "--format", "scores")["points"] == points
    )
    assert points[0]["radius"] > 0
    # Whoever says whether there is a header gets that many runs.
    for header, more, runs in (
        ("0", "--header yes", 3),
        ("0", "--header no", 4),
        ("loss", "", 3),
    ):
        csv.write_text(f"{header}\n{LOSSES}", encoding="utf-8")
        assert (
            document("loss", csv, *SMALL, *more.split())["expected_loss"]["runs"]
            == runs
        )


LABELS = "5,5,6\n4,4,4\n9,6,9\n1,1,4\n"
LOSSES = "0.1\n0.2\n0.15\n"


def test_what_may_be_miscounted_is_refused(tmp_path: Path) -> None:
    path, votes = tmp_path / "table.csv", tmp_path / "votes.npy"
    np.save(votes, np.full((4, 10), 7))
    others = {
        "loss": ("loss", path, *SMALL, "--bound", "9"),
        "truth": ("prediction", votes, *SMALL, "--labels", path),
    }
    for what, text, said in (
        # Taken for a header, a first row with a bad cell would shift every point by
        # one.
        *(
            ("votes", f"{bad},2,1\n4,5,6\n", "row 0, column 1")
            for bad in ("", "1 000", "9O")
        ),
        # As pandas writes columns without names, all or some of them.
        ("labels", "0,1,2\n" + LABELS, "begins with 0,1,2: a header"),
        ("labels", "1.0,5.0,6.0\n" + LABELS, "--header yes or --header no"),
        ("loss", "0\n" + LOSSES, "begins with 0: a header"),
        ("loss", "3\n" + LOSSES, "begins with 3: a header"),
        ("loss", "0,1,2\n0.1,0.2,0.1\n", "begins with 0,1,2: a header"),
        ("votes", "0,1,2\n1,2,0\n3,0,0\n", "begins with 0,1,2: a header"),
        ("truth", "0\n5\n4\n9\n1\n", "begins with 0: a header"),
        # Its own numbers of rows, with a name, without one, or without a header.
        ("labels", ",0,1,2\n0,5,5,6\n1,4,4,4\n", "index"),
        ("labels", ",a,b\n0,5,5\n1,4,4\n", "index"),
        ("labels", "Unnamed: 0,a,b\n0,5,5\n1,4,4\n", "index"),
        ("labels", "0,5,5,6\n1,4,4,4\n2,9,6,9\n", "its first column counts its rows"),
        ("loss", "0,0.1\n1,0.2\n2,0.1\n", "its first column counts its rows"),
        # What isn't read isn't dropped.
        ("votes", "0,8,2\n# 0,9,1\n1,9,0\n", "# 0"),
        ("votes", "0,8,2\n\n1,9,0\n", "line 2 is empty"),
        ("loss", "loss\n0.1\n\n0.2\n", "line 3 is empty"),
        ("labels", '"0","1"\n5,5\n4,4\n', "string"),
        ("votes", "a,b\nc,d\n", "string 'c'"),
        ("votes", "a,b\n", "it is empty"),
    ):
        path.write_text(text, encoding="utf-8")
        own = ("prediction", path, *SMALL, "--format", what)
        assert said in refused(*others.get(what, own)), text


def test_runs_vote_and_say_what_they_cost(runs: list[Path]) -> None:
    assert (
        document("prediction", "--runs", *runs, "--classes", "3")["change"]
        == "replacements"
    )
    found = document(
        "prediction", "--runs", *runs, "--classes", "3", "--change", "either"
    )
    assert (found["unit"], found["models"], found["soundness_bits"]) == (
        "client",
        30,
        40,
    )
    numbers = [
        found["mechanism"][k] for k in ("sampling_rate", "noise_multiplier", "rounds")
    ]
    assert numbers == pytest.approx([0.2, 2**0.5 * 30 * 1.002 / 20, 30])
    assert max(point["radius"] for point in found["points"]) >= 1
    costs = found["runs"]["joint_privacy_cost"]
    assert [cost["compositions"] for cost in costs] == [900] * 3
    server = poisson_gaussian(rate=0.1, noise_multiplier=30.0, count=900)
    # The exact pair of one record says the same.
    above, below = (
        max(
            stick.delta(costs[0]["epsilon"] * factor)
            for stick in ExactGroups(server).sticks(1)
        )
        for factor in (0.999, 1.001)
    )
    assert below < 1e-5 < above
    single = of_run(runs[0])["runs"]["joint_privacy_cost"]
    assert all(
        one["epsilon"] < many["epsilon"]
        for one, many in zip(single, costs, strict=True)
    )
    # Records of one client are safer than records anywhere.
    anywhere = document("prediction", "--runs", *runs, "--unit", "record")
    one_client = document(
        "prediction", "--runs", *runs, "--unit", "record-of-one-client"
    )
    assert anywhere["soundness_bits"] is None
    assert one_client["mechanism"]["participation"] == 0.2
    pairs = zip(anywhere["points"], one_client["points"], strict=True)
    assert all(a["radius"] < b["radius"] for a, b in pairs)


def test_losses_of_runs_and_bounds_as_functions_of_one(
    runs: list[Path], tmp_path: Path
) -> None:
    found = document("loss", "--runs", *runs, "--tau", "1.1", "--attackers", "3")
    assert found["expected_loss"]["runs"] == 30
    assert found["expected_loss"]["lower"] < 0.2 < found["expected_loss"]["upper"]
    uppers = [row["upper"] for row in found["bounds"]]
    assert (uppers, len(uppers)) == (sorted(uppers), 4)
    alone = document("loss", "--runs", runs[0])
    assert alone["expected_loss"] is None
    assert len({row["loss"] for row in alone["bounds"]}) > 3
    out = said("loss", "--runs", *runs, "--plot", tmp_path / "loss.png")
    assert "Joint privacy cost of these 30 runs" in out
    # A known loss, and a file of losses.
    known = document(
        "loss", *KNOWN, "--tau", "2", "--unit", "client", "--change", "either"
    )
    assert known["bounds"][0] == {
        "loss": 0.2,
        "attackers": 0,
        "lower": 0.2,
        "upper": 0.2,
    }
    assert known["fewest_attackers"][0]["attackers"] >= 1
    np.savetxt(tmp_path / "losses.csv", np.full((400, 1), 0.2))
    estimated = document(
        "loss", tmp_path / "losses.csv", *SMALL, "--interval", "bernstein"
    )
    assert estimated["expected_loss"]["mean"] == pytest.approx(0.2)
    assert estimated["bounds"][3]["upper"] > known["bounds"][3]["upper"]


def test_smoothing_with_and_without_selection(tmp_path: Path) -> None:
    counts, selection = tmp_path / "noisy.npy", tmp_path / "selection.npy"
    np.save(counts, np.array([[9900, 60, 40], [5100, 4800, 100]]))
    np.save(selection, np.array([[99, 1, 0], [60, 40, 0]]))
    noisy = ("smoothing", counts, "--sigma", "0.5")
    sure, close = document(*noisy, "--selection", selection)["points"]
    assert sure["radius"] == pytest.approx(1.1062098325510947)
    assert close["abstained"]
    assert document(*noisy)["points"][0]["radius"] < sure["radius"]


def test_bad_input_names_the_field(
    votes: Path, runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved(name: str, values: NDArray[np.generic]) -> tuple[object, ...]:
        np.save(tmp_path / name, values, allow_pickle=True)
        return ("prediction", tmp_path / name, *SMALL)

    given, one = ("prediction", votes, *SMALL), ("prediction", "--runs", runs[0])
    broken = finished(tmp_path / "broken", noise_multiplier=0.0)
    bad: list[tuple[str, tuple[object, ...]]] = [
        ("row 1 sums to 9", saved("a.npy", np.array([[5, 5], [5, 4]]))),
        ("arrays of numbers", saved("c.npy", np.array([{"a": 1}]))),
        ("no such file", ("prediction", tmp_path / "none.npy", *SMALL)),
        (
            "noise_multiplier = 0.0",
            tuple(commands.instead(given, "--noise-multiplier", "0")),
        ),
        (
            "noise_multiplier = ",
            tuple(commands.instead(given, "--noise-multiplier", "1e300")),
        ),
        (
            "noise_multiplier = ",
            tuple(commands.instead(given, "--noise-multiplier", "1e-300")),
        ),
        ("rounds = ", tuple(commands.instead(given, "--rounds", 10**15))),
        ("rounds = None: give --rounds", given[:-2]),
        ("votes", ("prediction", *SMALL)),
        ("ledgers", ("prediction", "--runs", *runs, "--noise-multiplier", "3")),
        ("one run gives no votes", one),
        ("noise_multiplier = 0.0", (*one, broken)),
        ("no predictions.npy", (*one, finished(tmp_path / "silent"))),
        ("only clients are absent", ("loss", *KNOWN, "--absent", "1")),
        ("absent", ("loss", *CLIENTS, "--absent", "-1")),
        (
            f"0<=x<={guarantee.LARGEST_GROUP}",
            ("loss", *CLIENTS, "--absent", 2 * 10**9),
        ),
        # Of a trained model.
        ("give a file of votes, or a model", ("smoothing",)),
        ("--config", ("smoothing", "--data", "x.npz")),
        ("say how much noise", ("smoothing", "votes.npy")),
        ("leave --votes out", ("smoothing", "votes.npy", "--data", "x.npz")),
    ]
    for said, arguments in bad:
        assert said in refused(*arguments)
    # A bad picture is refused first: no work is done.
    (tmp_path / "folder.png").mkdir()
    monkeypatch.setattr("precad.cli.certify_inputs.Trained", None)
    for name in ("no-such-folder/a.png", "a.txt", "folder.png"):
        assert "--plot" in refused("loss", *CLIENTS, "--plot", tmp_path / name)


def test_clients_are_replaced_unless_asked_otherwise_and_the_answer_says_which() -> (
    None
):
    replaced, added = (
        document("loss", *CLIENTS, *change)
        for change in ([], ["--change", "additions"])
    )
    assert (replaced["change"], document("loss", *KNOWN)["change"]) == (
        "replacements",
        "either",
    )
    pairs = zip(added["bounds"][1:], replaced["bounds"][1:], strict=True)
    assert all(a["upper"] < b["upper"] for a, b in pairs)
    assert "so many replaced by anything" in said("loss", *CLIENTS)
    # Selected absences count among the attackers.
    absent = document("loss", *CLIENTS, "--absent", "3")
    assert (absent["absent"], absent["bounds"][0]) == (3, replaced["bounds"][0])
    for k in range(1, 7):
        for side in ("lower", "upper"):
            assert absent["bounds"][k][side] == replaced["bounds"][k + 3][side]
    assert "beside 3 honest ones absent" in said("loss", *CLIENTS, "--absent", "3")


def test_a_certificate_says_in_its_line_that_it_rests_on_claims_unless_a_plan_divides(
    votes: Path, tmp_path: Path
) -> None:
    planned = finished(tmp_path / "planned", planned_units=1200)
    claimed = finished(tmp_path / "claimed")
    assert of_run(planned)["planned_units"] == 1200
    assert of_run(claimed)["planned_units"] is None
    answers = {
        planned: said("loss", "--runs", planned, "--loss", "0.2"),
        claimed: said("loss", "--runs", claimed, "--loss", "0.2"),
        # Who types how models were trained says nothing of what divided the sums.
        votes: said("prediction", votes, *SMALL),
    }
    for of, answer in answers.items():
        lines = " ".join(answer.split())
        (line,) = re.findall(r"(?:Attackers|Radius): so many [^:]*\.", lines)
        assert ("assuming the same claims of sizes" in line) is (of != planned)


def test_every_attempt_and_every_repeat_counts_against_a_certificate(
    tmp_path: Path,
) -> None:
    once, often = (
        document("loss", *CLIENTS, "--soundness-bits", "12", "--attempts", attempts)[
            "bounds"
        ][1]
        for attempts in (1, 3)
    )
    assert often["upper"] - once["upper"] == pytest.approx(100 * 2**-12, rel=0.3)
    assert of_run(finished(tmp_path / "told", attempts=60))["attempts"] == 60
    assert of_run(finished(tmp_path / "silent"))["attempts"] == 30_000
    # So many bits as only proofs must have count for proofs: hashes too.
    typed = [
        document("loss", *CLIENTS, "--soundness-bits", bits, "--attempts", "1")
        for bits in ("99", "100")
    ]
    assert [found["hashes"] for found in typed] == [None, 2**60]
    uppers = [found["bounds"][1]["upper"] for found in typed]
    assert 2**-41 < uppers[1] - uppers[0] < 2**-38
    # With proofs so are hashes.
    proof = {"validation": "proof", "malicious_submission_soundness_bits": 100}
    assert (
        of_run(finished(tmp_path / "proved", **proof, proof_points=1024))["hashes"]
        == 2**60
    )
    # Repeated releases divide the noise.
    first, again = (of_run(finished(tmp_path / str(m), most_repeats=m)) for m in (0, 3))
    noises = [found["mechanism"]["noise_multiplier"] for found in (first, again)]
    assert noises[0] == pytest.approx(2 * noises[1])
    assert again["bounds"][1]["upper"] > first["bounds"][1]["upper"]


def test_proofs_and_covered_uploads_count_in_what_finished_runs_cost(
    tmp_path: Path,
) -> None:
    """Runs of older versions under fss had another range test, whose share of δ isn't
    proofs'."""
    for validation, points in (("crypten", None), ("fss", None), ("proof", 64)):
        more = {"validation": validation, "proof_points": points}
        costs = of_run(finished(tmp_path / validation, **more))["runs"][
            "joint_privacy_cost"
        ]
        assert any(each["malicious_server"] for each in costs) is (
            validation == "proof"
        )
    seen, hidden = (
        of_run(finished(tmp_path / str(cover), cover_uploads=cover))
        for cover in (False, True)
    )
    costs = [found["runs"]["joint_privacy_cost"][2] for found in (seen, hidden)]
    assert {cost["adjacency"] for cost in costs} == {"zero-out-client"}
    assert costs[0]["epsilon"] > 2 * costs[1]["epsilon"]
    # What bounds robustness is the same: there the coin need only be out of the
    # attackers' reach.
    assert seen["bounds"] == hidden["bounds"]


def test_every_redrawn_coin_counts_as_the_attackers_choice(tmp_path: Path) -> None:
    """A server lost its coin key, and both operators had the version's coin drawn
    again."""
    folders = [finished(tmp_path / str(m), redrawn_coins=m) for m in (0, 1, 2)]
    found = [of_run(folder, loss=0.05) for folder in folders]
    assert [each["redrawn_coins"] for each in found] == [0, 1, 2]
    assert found[0]["bounds"][0] == found[1]["bounds"][0] == found[2]["bounds"][0]
    for m in (1, 2):
        for before, after in zip(
            found[0]["bounds"][1:], found[m]["bounds"][1:], strict=True
        ):
            assert after["upper"] == pytest.approx(min(1.0, 2**m * before["upper"]))
            least = 1 - 2**m * (1 - before["lower"])
            assert after["lower"] == pytest.approx(max(0.0, least))
    assert found[1]["bounds"][1]["upper"] > found[0]["bounds"][1]["upper"]
    shown = said("loss", "--runs", folders[2], "--loss", "0.05")
    assert "with 2 coins that were drawn again" in shown
    # Of records that are in every round no coin decides.
    assert of_run(folders[2], "--unit", "record", loss=0.05)["redrawn_coins"] == 0


def test_more_attackers_than_bounds_say_anything_of_are_still_bounded() -> None:
    bounds = document("loss", *KNOWN, "--attackers", "5000")["bounds"]
    assert (bounds[-1]["attackers"], bounds[-1]["lower"], bounds[-1]["upper"]) == (
        5000,
        0,
        1,
    )
    assert all(a["upper"] <= b["upper"] + 1e-6 for a, b in pairwise(bounds))
    assert [row["attackers"] for row in bounds[:21]] == list(range(21))
    assert len(bounds) < 60
    # With fewer digits they still hold.
    for bound, up, shown in (
        *(
            (0.89701, True, "0.8971"),
            (0.10299, False, "0.1029"),
            (0.07, True, "0.0700"),
        ),
        *(
            (1e-9, False, "0.0000"),
            (1e-9, True, "0.0001"),
            (1e30, True, f"{10**30}.0000"),
        ),
    ):
        assert certify_tables._rounded_bound(bound, 4, up=up) == shown
    loud = ["--sampling-rate", "1", "--noise-multiplier", "0.1", "--rounds", "30"]
    assert "say nothing" in said("loss", "--loss", "0.2", *loud)


@pytest.fixture
def trained(tmp_path: Path) -> list[str]:
    model = model_section(make("logistic", 4, 2), architecture="logistic")
    task = tasks.task_with(
        {"model": model, "objective": {"name": "dp-gaussian", "noise": 0.5}}
    )
    (tmp_path / "task.toml").write_text(task_description.written(task, "a test"))
    theta = np.array([5.0, 5, 0, 0, -5, -5, 0, 0, 0, 0])
    tasks.model_at(task, theta).save(tmp_path / "m.safetensors")
    x = np.array([[1, 1, 0, 0], [-1, -1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1]], np.float32)
    np.savez(tmp_path / "held-out.npz", x=x, y=np.array([0, 1, 1, 0]))
    return [
        *(
            "--task",
            str(tmp_path / "task.toml"),
            "--model-file",
            str(tmp_path / "m.safetensors"),
        ),
        *("--data", str(tmp_path / "held-out.npz"), "--copies", "2000"),
    ]


def test_a_model_is_certified_at_its_objectives_noise(
    trained: list[str], tmp_path: Path
) -> None:
    found = document("smoothing", *trained)
    assert (found["sigma"], found["abstained"]) == (0.5, 1)
    assert [point.get("label") for point in found["points"]] == [0, 1, 0, None]
    # A linear model: the true radius is the distance to its plane, √2.
    for point in found["points"][:3]:
        assert 0.5 < point["radius"] <= 2**0.5
    assert found["certified_accuracy"][0] == {"radius": 0, "share": 0.5}
    picture = tmp_path / "radius.png"
    shown = said("smoothing", *trained, "--plot", picture, "--first", "2")
    assert "Certified accuracy" in shown
    assert "--draw" in shown
    assert picture.stat().st_size > 1000
    # Kept votes are gone on with, and a draw repeats.
    noisier = [*trained, "--sigma", "1"]
    keep = ["--keep", str(tmp_path / "votes.jsonl")]
    first, again = (document("smoothing", *noisier, *keep) for _ in range(2))
    assert first == again == document("smoothing", *noisier, "--draw", first["draw"])
    assert "name another file" in refused("smoothing", *trained, *keep, "--sigma", "2")


TRAININGS = 80_000
CLOSE = 0.012


def trainings(
    m: SampledGaussian, group: int, malicious: int, generator: np.random.Generator
) -> Floats:
    """Of each one log-likelihood ratio of ``group`` malicious records to none, over all
    rounds.

    Where so many malicious records really take part.
    """
    shift = Shift(np.arange(group + 1.0), log_binomial(group, m.rate))
    table = np.linspace(-9 * m.noise_multiplier, group + 9 * m.noise_multiplier, 20_001)
    loss, _ = log_ratio(table, shift, m.noise_multiplier)
    total = np.zeros(TRAININGS)
    for _ in range(m.count):
        drawn = generator.binomial(malicious, m.rate, TRAININGS)
        total += np.interp(
            drawn + m.noise_multiplier * generator.standard_normal(TRAININGS),
            table,
            loss,
        )
    return total


GROUP = 6
CASES = [
    poisson_gaussian(rate=0.05, noise_multiplier=1.0, count=20),
    poisson_gaussian(rate=0.3, noise_multiplier=4.0, count=20),
    poisson_gaussian(rate=1.0, noise_multiplier=10.0, count=10),
    poisson_gaussian(rate=0.01, noise_multiplier=0.7, count=30),
]
# Five standard errors of the attacked score, and of the threshold's quantile.
SAMPLING_ERROR = 2 * 5 * math.sqrt(0.25 / TRAININGS)


@pytest.mark.parametrize(
    "m", CASES, ids=lambda m: f"q{m.rate}-sigma{m.noise_multiplier}-T{m.count}"
)
def test_the_best_attack_stays_inside_and_comes_close(m: SampledGaussian) -> None:
    generator = np.random.default_rng(2026)
    without = trainings(m, GROUP, 0, generator)
    with_group = trainings(m, GROUP, GROUP, generator)
    for direction, clean, poisoned in (
        # Under additions a poisoned training has the higher ratio, under deletions the
        # lower.
        (guarantee.Direction.ADDITIONS, without, with_group),
        (guarantee.Direction.DELETIONS, -with_group, -without),
    ):
        exact, renyi = (
            g(m).curves(GROUP, direction) for g in (ExactGroups, RenyiGroups)
        )
        for p_a in (0.6, 0.9, 0.99):
            attacked_a = float((poisoned <= np.quantile(clean, p_a)).mean())
            for curves in (exact, renyi):
                assert attacked_a >= float(curves.lower(p_a)) - SAMPLING_ERROR
                assert 1 - attacked_a <= float(curves.upper(1 - p_a)) + SAMPLING_ERROR
            # Close: the exact bound is what the best attack reaches, up to sampling.
            assert attacked_a <= float(exact.lower(p_a)) + CLOSE
            assert 1 - attacked_a >= float(exact.upper(1 - p_a)) - CLOSE


def test_the_same_attack_breaks_theorem_8() -> None:
    m = poisson_gaussian(rate=0.01, noise_multiplier=30.0, count=100)
    p_a, r, runs = 0.99, 700, 100_000
    printed = theorem_8(p_a, 1 - p_a, m)
    assert isinstance(printed.value, int)
    assert printed.value >= r, "Theorem 8 certifies 700 records"
    generator = np.random.default_rng(700)
    # Two labels; the sum of all rounds is a sufficient statistic to within the
    # sampling's noise.
    clean = m.noise_multiplier * math.sqrt(m.count) * generator.standard_normal(runs)
    threshold = m.noise_multiplier * math.sqrt(m.count) * 2.3263478740408408
    poisoned = np.zeros(runs)
    for _ in range(m.count):
        poisoned += generator.binomial(r, m.rate, runs)
        poisoned += m.noise_multiplier * generator.standard_normal(runs)
    assert (clean <= threshold).mean() == pytest.approx(p_a, abs=0.005)
    score_a = float((poisoned <= threshold).mean())
    assert score_a < 0.5, "and label B wins"
    exact = ExactGroups(m)
    curves = exact.curves(r, guarantee.Direction.ADDITIONS)
    assert score_a >= float(curves.lower(p_a)) - 0.02
    honest = certified.certify_prediction(p_a, 1 - p_a, 0, exact)
    assert isinstance(honest, prediction.Certified)
    assert honest.radius < r
