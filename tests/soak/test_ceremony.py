"""docs/ceremony.md, typed to the letter by three organisations: set-up, training, no key twice.

In three network namespaces where root can make them, and on three addresses of one loopback; and
as the page says it for two organisations' servers without a dealer.
"""

import csv
import hashlib
import os
import random
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rig.consortium import PARTIES
from tests.rig.organisations import NAMES, Organisation, organisations
from tests.rig.pages import typed, written
from tests.rig.waiting import until

from precad.common.identity.credentials import Identity

PAGE = "docs/ceremony.md"
KEYS = (b"PRIVATE KEY-----",)


def records(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["age", "pressure", "readmitted"])
        for _ in range(400):
            age, pressure = rng.gauss(62, 14), rng.gauss(132, 20)
            risk = (age - 62) / 14 + (pressure - 132) / 20
            writer.writerow([f"{age:.0f}", f"{pressure:.0f}", "yes" if risk > 0 else "no"])


def check_no_key_travels(folder: Path) -> int:
    """Each private key's bytes lie in one folder, and none in the post. Returns how many."""
    places: dict[str, set[str]] = {}
    for where, _, names in os.walk(folder):
        for path in (Path(where, name) for name in names):
            data = path.read_bytes() if path.is_file() else b""
            if path.name == "coin.key" or any(mark in data for mark in KEYS):
                places.setdefault(hashlib.sha256(data).hexdigest(), set()).add(where)
    assert {digest: found for digest, found in places.items() if len(found) > 1} == {}
    assert not any(w.startswith(str(folder / "post")) for found in places.values() for w in found)
    return len(places)


def packed(archive: Path) -> Iterator[bytes]:
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            if (file := opened.extractfile(member)) is not None:
                yield file.read()


def without_dealer(text: str) -> str:
    """As the page says it: no line that names the dealer, and the other check of norms."""
    kept = "".join(line for line in text.splitlines(keepends=True) if "dealer" not in line)
    return kept.replace("precad task new", "precad task new --validation proof")


def play(all_of_them: dict[str, Organisation], folder: Path, *, dealer: bool) -> int:
    for name, file, text in written(PAGE):
        all_of_them[name].write(file, text if dealer else without_dealer(text))
    count = 0
    for each in typed(PAGE):
        if text := each.text if dealer else without_dealer(each.text):
            all_of_them[each.title].type(text)
            check_no_key_travels(folder)
            count += 1
    return count


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("form", "dealer"), [("namespaces", True), ("loopback", True), ("loopback", False)]
)
def test_three_organisations_train_by_the_page(tmp_path: Path, form: str, *, dealer: bool) -> None:
    """On three addresses of one loopback too, which is all that some machines allow."""
    with organisations(tmp_path, apart=form == "namespaces") as (all_of_them, network):
        where = "network namespaces" if network.separate else "three addresses of one loopback"
        sys.stdout.write(f"{where}\n")
        for seed, each in enumerate(all_of_them.values()):
            records(each.folder / "records.csv", seed)
        assert play(all_of_them, tmp_path, dealer=dealer) >= 50 - 5 * (not dealer)
        models = [
            tmp_path / name / f"{name.lower()}-ward" / "state" / "model.safetensors"
            for name in NAMES
        ]
        until(lambda: all(m.is_file() for m in models), "every owner's model")
        assert len({m.read_bytes() for m in models}) == 1
        said = "\n".join(all_of_them["West"].seen)
    # A signing key a party, the root's, and each server's half of the coin.
    assert check_no_key_travels(tmp_path) == 6 + dealer + 1 + 2
    for name, parties in PARTIES.items():
        for party in (each for each in parties if dealer or each.name != "dealer"):
            assert Identity.load(tmp_path / name / party.name / "keys").principal == party
    kits = sorted((tmp_path / "post").glob("*-kit.tar.gz"))
    assert len(kits) == 5 + dealer
    assert not [kit for kit in kits if any(mark in d for d in packed(kit) for mark in KEYS)]
    for kit in kits:
        assert hashlib.sha256(kit.read_bytes()).hexdigest() in said
