"""What pip installs for some of the project's extras, one requirement a line.

    python requirements.py EXTRA… < pyproject.toml

For images and wheels that are made before the source is there.
"""

import re
import sys
import tomllib
from typing import Any


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Those of the base and of the extras, with extras of the project itself replaced."""
    optional = project["optional-dependencies"]
    found = dict.fromkeys(project["dependencies"])
    left = list(extras)
    while left:
        for requirement in optional[left.pop()]:
            own = re.fullmatch(r"precad\[([\w,-]+)\]", requirement)
            if own:
                left += own[1].split(",")
            else:
                found[requirement] = None
    return list(found)


if __name__ == "__main__":
    project = tomllib.loads(sys.stdin.read())["project"]
    print(*requirements(project, sys.argv[1:]), sep="\n")
