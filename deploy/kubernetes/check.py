"""Checks the manifests against Kubernetes' own schemas, strictly: `make manifests`.

The schemas are those that the package kubernetes-validate brings, for every version
from 1.25 on.
"""

import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

FOLDER = Path(__file__).parent
VERSIONS = ("1.25", "1.31", "1.37")
SETTINGS = {"server-a", "server-b", "dealer"}


def faults(document: dict[str, Any]) -> list[str]:
    """What each version's schema says against one resource."""
    found = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"Kubernetes {version}: {error.message}")
    return found


def main() -> int:
    """Say what is wrong. Returns the exit status."""
    wrong, count = [], 0
    for path in sorted(FOLDER.rglob("*.yml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            count += 1
            what = f"{path.relative_to(FOLDER)}, {document['kind']}"
            wrong += [f"{what}: {said}" for said in faults(document)]
    broken = {"apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"replicaz": 1}}
    if not faults(broken):
        wrong.append("the check takes what no schema has")
    print(
        *(wrong or [f"{count} resources fit the schemas of {', '.join(VERSIONS)}"]),
        sep="\n",
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
