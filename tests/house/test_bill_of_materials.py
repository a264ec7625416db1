"""A release's bill of materials and licences: by the very files that its lock names."""

import hashlib
import json
import os
import runpy
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rig.pages import ROOT

DEPLOY = ROOT / "deploy"
MADE = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)


def wheel(folder: Path, name: str, metadata: str, **texts: str) -> Path:
    """A wheel with no code, and licences."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    inside = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as opened:
        head = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n"
        opened.writestr(f"{inside}/METADATA", head + metadata)
        for file, text in texts.items():
            opened.writestr(f"{inside}/licenses/{file}", text)
    return path


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """deploy's modules, which stand beside each other."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    for name in ("requirements", "locked", "wheels"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return runpy.run_path(str(DEPLOY / "bill_of_materials.py"))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    one_text = {"LICENSE": "Do as you like.", "third/LICENSE": "Do as you like."}
    return {
        "own": wheel(tmp_path, "own", "License-Expression: Apache-2.0\n"),
        "top": wheel(
            tmp_path,
            "top_layer",
            "Summary: Stands on base\nLicense-Expression: MIT AND BSD-3-Clause\n",
            **one_text,
        ),
        "base": wheel(
            tmp_path,
            "base",
            "Classifier: License :: OSI Approved :: MIT License\n",
            COPYING="Ask first.",
        ),
    }


def bill(programs: dict[str, Any], files: dict[str, Path]) -> str:
    read = programs["Wheel"].read
    locked = programs["Locked"]
    made: str = programs["bill"](
        read(files["own"]),
        {"top-layer"},
        [read(files["base"]), read(files["top"])],
        [
            locked("top-layer", "top-layer==1.0", frozenset()),
            locked("base", "base==1.0", frozenset({"top-layer"})),
            # For another system: pip took nothing of it.
            locked("elsewhere", "elsewhere==1.0", frozenset({"top-layer"})),
        ],
        serial="abc:server",
        made=MADE,
    )
    return made


def test_a_bill_names_each_package_with_version_hash_and_licence(
    programs: dict[str, Any], files: dict[str, Path]
) -> None:
    made = json.loads(bill(programs, files))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["timestamp"].startswith("2026-11-28T12:00:00")
    assert made["metadata"]["component"]["purl"] == "pkg:pypi/own@1.0"
    digest = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
    }
    rows = {
        each["purl"]: (each["hashes"], each["licenses"]) for each in made["components"]
    }
    assert rows == {
        "pkg:pypi/base@1.0": (
            [{"alg": "SHA-256", "content": digest["base"]}],
            [{"license": {"id": "MIT"}}],
        ),
        "pkg:pypi/top-layer@1.0": (
            [{"alg": "SHA-256", "content": digest["top"]}],
            [{"expression": "MIT AND BSD-3-Clause"}],
        ),
    }
    links = {each["ref"]: each.get("dependsOn", []) for each in made["dependencies"]}
    assert links == {
        "pkg:pypi/own@1.0": ["pkg:pypi/top-layer@1.0"],
        "pkg:pypi/top-layer@1.0": ["pkg:pypi/base@1.0"],
        "pkg:pypi/base@1.0": [],
    }


def test_the_same_commit_gives_the_same_bill_byte_by_byte(
    programs: dict[str, Any], files: dict[str, Path]
) -> None:
    assert bill(programs, files) == bill(programs, files)


def test_all_licences_are_in_one_text_and_the_same_one_once_a_package(
    programs: dict[str, Any], files: dict[str, Path]
) -> None:
    licences_text = runpy.run_path(str(DEPLOY / "wheels.py"))["licences_text"]
    read = programs["Wheel"].read
    text = licences_text([read(files[name]) for name in ("base", "own", "top")])
    head, _, rest = text.partition("=" * 80)
    assert head.splitlines()[2:] == [
        "base 1.0: MIT",
        "own 1.0: Apache-2.0",
        "top-layer 1.0: MIT AND BSD-3-Clause",
        "",
    ]
    assert "--- licenses/COPYING\n\nAsk first." in rest
    assert rest.count("Do as you like.") == 1
    assert "--- licenses/LICENSE, licenses/third/LICENSE" in rest
    assert rest.count("holds no text of a licence") == 1


def test_a_file_that_is_no_wheel_is_refused_by_name(
    programs: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "package.zip"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("METADATA", "Name: a\n")
    with pytest.raises(ValueError, match=r"package.zip: 0 files of metadata; give a"):
        programs["Wheel"].read(path)


def test_a_release_has_a_bill_for_each_image_of_the_compose_file(
    programs: dict[str, Any],
) -> None:
    assert programs
    images = runpy.run_path(str(DEPLOY / "release.py"))["IMAGES"]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    built = {
        service["image"].rpartition("-")[2]: service["build"]["args"]["EXTRA"]
        for service in compose["services"].values()
        if "build" in service
    }
    assert images == built


@pytest.mark.parametrize(
    ("words", "torch", "refused"),
    [
        ((), "", "0.3.0.dev1: no release (CONTRIBUTING.md); TRY=1 builds it all the"),
        (("--try",), "gpu", "TORCH=gpu: give cpu or cuda"),
    ],
)
def test_what_is_no_release_isnt_built_as_one(
    words: tuple[str, ...], torch: str, refused: str
) -> None:
    told = {"PRECAD_BUILD": f"0.3.0.dev1 {'ab' * 20}", "TORCH": torch}
    ended = subprocess.run(
        [sys.executable, str(DEPLOY / "release.py"), *words],
        env=os.environ | told,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith(refused)
