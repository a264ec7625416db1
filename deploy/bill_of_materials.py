"""What one of a release's images is installed with, in CycloneDX's JSON.

The same wheels and the same commit give the same bytes: time and serial number are the
commit's.
"""

from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.dependency import Dependency
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from locked import Locked
from packageurl import PackageURL
from wheels import Wheel


def bill(
    package: Wheel,
    asked_for: set[str],
    wheels: list[Wheel],
    locked: list[Locked],
    *,
    serial: str,
    made: datetime,
) -> str:
    """Return the bill of ``package``, which asks for these names, with ``wheels``.

    ``wheels`` are what pip took of ``locked`` on one machine: fewer, since some are for
    other systems. ``serial`` tells bills apart. A ``ValueError`` says where the result
    breaks CycloneDX's schema.
    """
    whole = Bom(serial_number=uuid5(NAMESPACE_URL, f"precad:{serial}"))
    root = component(package, ComponentType.APPLICATION)
    whole.metadata.timestamp = made
    whole.metadata.component = root
    parts = {each.name: component(each, ComponentType.LIBRARY) for each in wheels}
    whole.components.update(parts.values())
    children: dict[str, set[str]] = {name: set() for name in parts}
    for each in locked:
        for parent in each.asked_by & set(parts):
            children[parent].add(each.name)
    whole.dependencies.add(_links(root, asked_for, parts))
    for name, part in parts.items():
        whole.dependencies.add(_links(part, children[name], parts))
    text = JsonV1Dot6(whole).output_as_string(indent=2)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"a bill of materials breaks CycloneDX's schema: {problem}")
    return text + "\n"


def component(wheel: Wheel, kind: ComponentType) -> Component:
    """Return a package as CycloneDX writes it."""
    purl = PackageURL("pypi", None, wheel.name, wheel.version)
    licence = LicenseFactory().make_from_string(wheel.licence)
    return Component(
        name=wheel.name,
        version=wheel.version,
        type=kind,
        bom_ref=purl.to_string(),
        purl=purl,
        description=wheel.summary or None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel.sha256)],
        licenses=[licence],
    )


def _links(
    parent: Component, children: set[str], parts: dict[str, Component]
) -> Dependency:
    inside = [parts[name].bom_ref for name in sorted(children & set(parts))]
    return Dependency(parent.bom_ref, map(Dependency, inside))
