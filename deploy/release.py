"""Build all that a release is made of, in dist (`make release`).

    python deploy/release.py [--try]

That is the wheel and the source distribution; for each image's part what pip installs
for it, with hashes, and its bill of materials; all licences in one text; the images,
where a container engine answers; and SHA256SUMS over all files. The same commit gives
the same files, byte by byte. A commit that is no release is refused, unless it is to be
tried. Images are built as docker-compose.yml builds them: BASE, BUILDER, PIP_ARGS,
TORCH and PRECAD_IMAGE of the environment mean the same.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from bill_of_materials import bill
from build_version import build_of
from locked import as_text, of_extras
from requirements import name_of, requirements
from wheels import Wheel, licences_text

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
IMAGES = {
    "dealer": "dealer",
    "server": "server,postgres",
    "client": "client",
    "simulation": "simulation,report,postgres",
}
"""Images, and what they are installed with."""
TORCH = os.environ.get("TORCH") or "cuda"


def say(text: str) -> None:
    """Tell the person what was done."""
    print(f"release: {text}", flush=True)


def called(*command: str | Path, **more: str) -> str:
    """Return what a program prints; its errors are the person's to read."""
    ended = subprocess.run(
        [str(each) for each in command],
        cwd=ROOT,
        env=os.environ | more,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        sys.exit(
            f"release: {' '.join(map(str, command[:3]))}… ended with {ended.returncode}"
        )
    return ended.stdout.strip()


def build_package(time_s: str) -> Wheel:
    """Build the wheel and the source distribution, and return what the wheel says."""
    for leftover in ("lib", *(each.name for each in (ROOT / "build").glob("bdist*"))):
        shutil.rmtree(ROOT / "build" / leftover, ignore_errors=True)
    backend = "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
    called(sys.executable, "-c", backend, SOURCE_DATE_EPOCH=time_s)
    (wheel,) = DIST.glob("*.whl")
    return Wheel.read(wheel)


def describe(package: Wheel, commit: str, made: datetime) -> None:
    """Write locks, bills of materials and licences, by the files that the locks name."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    licensed: dict[str, Wheel] = {}
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--dest", folder)
        for part, extras in IMAGES.items():
            names = extras.split(",")
            locked = of_extras(document, names, cpu=TORCH == "cpu")
            named = DIST / f"precad-{package.version}-{part}.lock.txt"
            named.write_text(as_text(locked), encoding="utf-8")
            # What an earlier part has too lies there already.
            called(*pip, "--no-deps", "--require-hashes", "--requirement", named)
            for path in Path(folder).iterdir():
                if path.name not in licensed:
                    licensed[path.name] = Wheel.read(path)
            inside = {each.name for each in locked}
            wheels = [each for each in licensed.values() if each.name in inside]
            wheels.sort(key=lambda each: each.name)
            text = bill(
                package,
                {name_of(each) for each in requirements(document["project"], names)},
                wheels,
                locked,
                serial=f"{commit}:{part}:{TORCH}",
                made=made,
            )
            bill_file = DIST / f"precad-{package.version}-{part}.cdx.json"
            bill_file.write_text(text, encoding="utf-8")
            say(f"{part}: {len(wheels)} packages beside precad")
    everything = sorted(licensed.values(), key=lambda each: each.name)
    licences = DIST / f"precad-{package.version}-licences.txt"
    licences.write_text(licences_text(everything), encoding="utf-8")


def build_images(build: dict[str, str], made: datetime) -> None:
    """Build the images, and list them in images.txt with their digests."""
    engine = shutil.which("docker")
    asked = engine and subprocess.run(
        [engine, "info"], capture_output=True, check=False
    )
    if not engine or not asked or asked.returncode:
        say("no container engine answers here (docker info): no images were built")
        return
    prefix = os.environ.get("PRECAD_IMAGE") or "precad"
    passed = {
        name: os.environ.get(name, "") for name in ("BASE", "BUILDER", "PIP_ARGS")
    }
    arguments = {name: value for name, value in passed.items() if value} | {
        "TORCH": TORCH,
        "VERSION": build["version"],
        "REVISION": build["commit"],
        "CREATED": made.isoformat(),
        "SOURCE": os.environ.get("PRECAD_SOURCE", ""),
    }
    # A tag may hold no plus.
    tag = build["version"].replace("+", "-")
    lines = []
    for part, extras in IMAGES.items():
        name = f"{prefix}-{part}:{tag}"
        given = [f"--build-arg={each}={value}" for each, value in arguments.items()]
        given.append(f"--build-arg=EXTRA={extras}")
        called(engine, "build", "--quiet", *given, "--tag", name, ".")
        digest = called(engine, "image", "inspect", "--format", "{{.Id}}", name)
        lines.append(f"{digest}  {name}")
        say(f"{name} is built")
    (DIST / "images.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Build a release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--try",
        action="store_true",
        dest="trying",
        help="build a commit that is no release",
    )
    trying = parser.parse_args().trying
    build = build_of(ROOT)
    if ".dev" in build["version"] and not trying:
        sys.exit(
            f"{build['version']}: no release (CONTRIBUTING.md); TRY=1 builds it all the same"
        )
    if TORCH not in {"cpu", "cuda"}:
        sys.exit(f"TORCH={TORCH}: give cpu or cuda")
    shutil.rmtree(DIST, ignore_errors=True)
    time_s = called("git", "log", "-1", "--format=%ct")
    made = datetime.fromtimestamp(int(time_s), UTC)
    package = build_package(time_s)
    describe(package, build["commit"], made)
    build_images(build, made)
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}"
        for path in sorted(DIST.iterdir())
    ]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n", encoding="utf-8")
    say(f"{build['version']}: {len(sums)} files and their checksums in dist")


if __name__ == "__main__":
    main()
