"""A party's archive: the same bytes whoever packs it, so that its SHA-256 can be read out."""

import gzip
import io
import tarfile
from collections.abc import Mapping
from importlib.resources import files
from string import Template

from precad.cli.kit.consortium import IDENTITY
from precad.common.files import FOLDER_MODE, PUBLIC_MODE
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal

_PARTS = {Role.SERVER_A: "a", Role.SERVER_B: "b", Role.DEALER: "dealer"}
UNIT = "precad.service"


def packed(folder: str, contents: Mapping[str, str], *, keys: bool = True) -> bytes:
    """A .tar.gz of text files in one folder; no time, owner or order of this machine's in it.

    Args:
        folder: in which all of them lie.
        contents: text by path within it.
        keys: whether it has a folder for keys, its owner's alone from the first.
    """
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        if keys:
            place = tarfile.TarInfo(f"{folder}/{IDENTITY}")
            place.type, place.mode = tarfile.DIRTYPE, FOLDER_MODE
            archive.addfile(place)
        for name in sorted(contents):
            data = contents[name].encode()
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode = len(data), PUBLIC_MODE
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def machine(party: Principal) -> dict[str, str]:
    """The two ways to keep the party's process running: a compose file, a unit for systemd.

    None for the operator, who has no process.
    """
    if party.role is Role.OPERATOR:
        return {}
    folder = files("precad.cli.kit") / "machines"
    command = "join" if party.role is Role.CLIENT else f"serve {_PARTS[party.role]}"
    unit = Template((folder / UNIT).read_text(encoding="utf-8"))
    return {
        "compose.yml": (folder / f"{party.role.value}.yml").read_text(encoding="utf-8"),
        f"precad-{party.name}.service": unit.substitute(party=party.name, command=command),
    }
