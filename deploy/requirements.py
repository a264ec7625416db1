"""What pip installs for some of the project's extras, one requirement a line.

    python requirements.py EXTRA… < pyproject.toml            with all that it asks for
    python requirements.py --bare EXTRA… < pyproject.toml     by themselves

For images and wheels that are made before the source is there. CrypTen asks for pandas,
TensorBoard, torchvision and scikit-learn, and loads none of them: an image takes it
bare, and what it loads beside.
"""

import re
import sys
import tomllib
from typing import Any

BARE = {"crypten": ("omegaconf", "onnx", "pyyaml")}
"""Packages that are installed without what they ask for, and what they load of it."""
ASKED_FOR = {"server": ("sklearn", "torchvision")}
"""What an extra names only because such a package asks for it."""


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Those of base and extras, with extras of the project itself replaced."""
    optional = project["optional-dependencies"]
    found = dict.fromkeys(project["dependencies"])
    left = list(extras)
    while left:
        extra = left.pop()
        for requirement in optional[extra]:
            own = re.fullmatch(r"precad\[([\w,-]+)\]", requirement)
            if own:
                left += own[1].split(",")
            elif name_of(requirement) not in ASKED_FOR.get(extra, ()):
                found[requirement] = None
    return list(found)


def whole(found: list[str]) -> list[str]:
    """What is installed with all that it asks for."""
    bare = [name_of(each) for each in found if name_of(each) in BARE]
    return [each for each in found if name_of(each) not in BARE] + [
        needed for name in bare for needed in BARE[name]
    ]


def bare(found: list[str]) -> list[str]:
    """What is installed by itself."""
    return [each for each in found if name_of(each) in BARE]


def name_of(requirement: str) -> str:
    """Return the name of what is asked for, as package indexes write it."""
    name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    arguments = sys.argv[1:]
    part = bare if "--bare" in arguments else whole
    extras = [each for each in arguments if each != "--bare"]
    found = requirements(tomllib.loads(sys.stdin.read())["project"], extras)
    print(*part(found), sep="\n")
