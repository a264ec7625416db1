"""deploy/lock.txt: all that images hold, within pyproject's bounds, each with hashes."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tests.rig.commands import printed
from tests.rig.pages import ROOT

DEPLOY = ROOT / "deploy"
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
LOCKS = ("lock.txt", "lock-cpu.txt", "lock-build.txt")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}(?: \\)?")
# Written so that this file isn't found.
REGISTRIES = "(download[.]pytorch|pypi|pythonhosted)[.]org"
# What an image takes without all that it asks for.
BARE = "crypten"


def images() -> Iterator[tuple[str, ...]]:
    """The extras of each image, as docker-compose.yml has them."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    extras = {
        service["build"]["args"]["EXTRA"]
        for service in compose["services"].values()
        if "build" in service
    }
    assert len(extras) == 4
    yield from (tuple(each.split(",")) for each in sorted(extras))


IMAGES = [*images(), ("demo",)]


def pins(text: str) -> dict[str, list[Requirement]]:
    """What a file of requirements pins, by name; each must have a hash."""
    found: dict[str, list[Requirement]] = {}
    entries = re.split(r"^(?=\w)", text, flags=re.MULTILINE)[1:]
    for entry in entries:
        first, *rest = [
            line for line in entry.splitlines() if not line.lstrip().startswith("#")
        ]
        assert rest, entry
        assert all(HASH.fullmatch(line.strip()) for line in rest), entry
        requirement = Requirement(first.removesuffix("\\"))
        assert [each.operator for each in requirement.specifier] == ["=="]
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


@cache
def locked(*words: str) -> dict[str, list[Requirement]]:
    text = printed(DEPLOY / "locked.py", *words, input=PROJECT)
    assert text.startswith("--only-binary :all:\n")
    return pins(text)


def pinned(requirement: Requirement) -> Version:
    (only,) = requirement.specifier
    return Version(only.version)


@cache
def asked_for(*extras: str) -> list[Requirement]:
    program = DEPLOY / "requirements.py"
    lines = [
        line
        for part in ((), ("--bare",))
        for line in printed(program, *part, *extras, input=PROJECT).split()
    ]
    return [Requirement(line) for line in lines]


def here(requirements: list[Requirement]) -> Requirement:
    """The one that pip takes on this machine."""
    (found,) = [
        each for each in requirements if each.marker is None or each.marker.evaluate()
    ]
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_address_and_each_of_its_files_by_a_hash(name: str) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert pins(text)
    assert not re.search(r"://|index-url|find-links|trusted-host", text)


@pytest.mark.parametrize("cpu", [(), ("--cpu",)], ids=["cuda", "cpu"])
@pytest.mark.parametrize("extras", IMAGES, ids=",".join)
def test_all_that_an_image_asks_for_is_locked_within_the_projects_bounds(
    extras: tuple[str, ...], cpu: tuple[str, ...]
) -> None:
    found = locked(*cpu, *extras)
    for requirement in asked_for(*extras):
        pin = here(found[canonicalize_name(requirement.name)])
        assert requirement.specifier.contains(pinned(pin)), (requirement, pin)


@pytest.mark.parametrize("extras", IMAGES, ids=",".join)
def test_what_locked_packages_ask_for_is_locked_too_within_their_bounds(
    extras: tuple[str, ...],
) -> None:
    """By what those say that are installed here in the locked version."""
    found = locked("--cpu", *extras)
    checked = 0
    for name in sorted(set(found) - {BARE}):
        pin = here(found[name]) if len(found[name]) > 1 else found[name][0]
        try:
            if Version(version(name)) != pinned(pin):
                continue
        except PackageNotFoundError:
            continue
        checked += 1
        for each in map(Requirement, requires(name) or []):
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                needed = here(found[canonicalize_name(each.name)])
                assert each.specifier.contains(pinned(needed)), (name, each)
    assert checked > 5


def test_a_dealer_s_image_has_no_torch_and_a_cpu_build_nothing_of_cuda() -> None:
    assert not {"torch", "scipy", "crypten"} & set(locked("dealer"))
    cuda = locked("server")
    cpu = locked("--cpu", "server")
    assert pinned(cpu["torch"][0]) == Version(f"{pinned(cuda['torch'][0])}+cpu")
    of_cuda = set(cuda) - set(cpu)
    assert "nvidia-cublas" in of_cuda
    assert not [name for name in cpu if re.search("nvidia|cuda|triton", name)]
    assert all(re.match("nvidia-|cuda-|triton$", name) for name in of_cuda)


def test_what_builds_the_package_is_locked_within_its_bounds() -> None:
    found = pins((DEPLOY / "lock-build.txt").read_text(encoding="utf-8"))
    needed = tomllib.loads(PROJECT)["build-system"]["requires"]
    for requirement in map(Requirement, needed):
        assert requirement.specifier.contains(pinned(found[requirement.name][0]))


def test_an_extra_that_isnt_locked_is_refused_with_what_to_do() -> None:
    ended = subprocess.run(
        [sys.executable, str(DEPLOY / "locked.py"), "server", "ray"],
        input=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "lock.txt has no ray, which server,ray needs: name the extra in"
        " deploy/lock.py and `make lock`, or build without it (LOCK=)\n"
    )


def test_no_file_has_the_address_of_a_package_registry() -> None:
    """An error's remedy had one: whoever installs says where from."""
    named = subprocess.run(
        ["git", "-C", str(ROOT), "grep", "--untracked", "-lE", REGISTRIES],
        capture_output=True,
        text=True,
        check=False,
    )
    # 1: no file has one.
    assert (named.returncode, named.stdout) == (1, "")


def test_pip_takes_a_locked_file_and_refuses_another_one(tmp_path: Path) -> None:
    """pip itself, with a file that has another hash than the lock's."""
    name, (pin, *_) = next(iter(locked("dealer").items()))
    wheel = tmp_path / f"{name.replace('-', '_')}-{pinned(pin)}-py3-none-any.whl"
    wheel.write_bytes(b"not what was locked")
    named = tmp_path / "lock.txt"
    named.write_text(printed(DEPLOY / "locked.py", "dealer", input=PROJECT))
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    where = ["--no-index", f"--find-links={tmp_path}", "--dest", str(tmp_path / "into")]
    ended = subprocess.run(
        [*pip, *where, "--requirement", str(named)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode != 0
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in ended.stderr
