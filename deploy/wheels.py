"""What wheels say of themselves: versions, hashes and licences, with the licences' texts.

A release reads the very files that its lock names, which pip has compared with the
lock's hashes when it fetched them: what they say is what is installed.
"""

import hashlib
import re
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath

from requirements import name_of

TEXT = re.compile(r"licen[cs]e|copying|notice|copyright|authors", re.IGNORECASE)
"""Names of files that hold a licence, or what a licence asks to be passed on."""
OF_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "MIT License": "MIT",
    "BSD License": "BSD",
}
"""What older wheels say of their licence, and how others write it."""
LONGEST_NAME = 80
"""What is longer, or has lines, is a text and no name."""


@dataclass(frozen=True)
class Wheel:
    """A package as its file describes it; ``texts`` are by file, in order."""

    name: str
    version: str
    sha256: str
    summary: str
    licence: str
    texts: dict[str, str]

    @classmethod
    def read(cls, path: Path) -> "Wheel":
        """Read a wheel; a ``ValueError`` names one without metadata."""
        with zipfile.ZipFile(path) as opened:
            names = sorted(opened.namelist())
            found = [
                each
                for each in names
                if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)
            ]
            if len(found) != 1:
                raise ValueError(
                    f"{path}: {len(found)} files of metadata; give a wheel"
                )
            described = message_from_bytes(opened.read(found[0]))
            folder = found[0].removesuffix("METADATA")
            inside = [
                each for each in names if each.startswith(folder) and each[-1] != "/"
            ]
            texts = {
                each.removeprefix(folder): opened.read(each).decode("utf-8", "replace")
                for each in inside
                if TEXT.search(PurePosixPath(each).name) or "/licenses/" in each
            }
        return cls(
            name=name_of(str(described["Name"])),
            version=str(described["Version"]),
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            summary=str(described["Summary"] or ""),
            licence=licence_of(described),
            texts=texts,
        )


def licence_of(described: Message) -> str:
    """Return a package's licence in a few words; an SPDX expression if it has one."""
    if described["License-Expression"]:
        return str(described["License-Expression"])
    said = str(described["License"] or "").strip()
    if said and "\n" not in said and len(said) <= LONGEST_NAME:
        return said
    kinds = [str(each).split(" :: ") for each in described.get_all("Classifier", [])]
    names = [kind[-1] for kind in kinds if kind[0] == "License"]
    return " AND ".join(OF_CLASSIFIERS.get(each, each) for each in names) or "unknown"


def licences_text(wheels: list[Wheel]) -> str:
    """Return one text with every package's licence; the same text once a package."""
    rows = [f"{each.name} {each.version}: {each.licence}" for each in wheels]
    parts = [
        "\n".join(
            ["What precad is installed with, and under which licence.", "", *rows]
        )
    ]
    for each in wheels:
        first: dict[str, list[str]] = {}
        for name, text in each.texts.items():
            first.setdefault(text.strip(), []).append(name)
        parts.append(
            f"{'=' * 80}\n{each.name} {each.version}: {each.licence}\n{each.summary}"
        )
        parts += [f"--- {', '.join(names)}\n\n{text}" for text, names in first.items()]
        if not first:
            parts.append("--- Its file holds no text of a licence.")
    return "\n\n".join(parts) + "\n"
