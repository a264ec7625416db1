"""`precad audit --certificate`: what bad owners did to certified predictions."""

import sys
from typing import Any, TextIO

from precad.audit.certificate import (
    BUILDS,
    SIGNIFICANCE,
    CertificateVerdict,
    audit_certificates,
    certifiable,
)
from precad.common.errors import Misconfiguration
from precad.common.terminal.progress import bar
from precad.common.terminal.text import Table, say


def attack(models: int, build: str, seed: int, out: TextIO) -> tuple[dict[str, Any], bool]:
    """Attack, and show it; the document, and whether a certificate is refuted.

    Raises:
        Misconfiguration: no such build, or too few models.
    """
    if build not in BUILDS:
        raise Misconfiguration(
            "--build", build, f"with --certificate use one of {', '.join(BUILDS)}"
        )
    with bar("trainings", None, sys.stderr) as status:
        found = audit_certificates(
            certifiable(seed),
            models,
            seed,
            loose=BUILDS[build],
            on_ensemble=lambda what: status.set_description(f"{models} {what}"),
        )
    _show(out, found)
    document = {
        "seed": seed,
        "build": build,
        "models": models,
        "significance": SIGNIFICANCE,
        "simulated": True,
        **found.to_json(),
    }
    return document, found.refuted


def _show(out: TextIO, found: CertificateVerdict) -> None:
    numbers = (">certified against", ">bad owners", ">points", ">votes of the label")
    table = Table(*numbers, ">its share: promised", ">at most", "")
    for certified, attacks in ((None, found.within), (found.least_certified, found.beyond)):
        for one in attacks:
            promised = f"{one.certified_at_least:.3f}" if certified is None else "nothing"
            table.add(
                str(one.attackers if certified is None else certified),
                str(one.attackers),
                str(one.points),
                f"{one.label_votes} of {one.models}",
                promised,
                f"{one.at_most:.3f}",
                _word(one.flipped, within=certified is None, refuted=one.refuted),
            )
    table.show(out)
    for one in found.within:
        if one.refuted:
            say(
                out,
                f"audit failed: a prediction is certified against {one.attackers} bad owners, its "
                f"label keeping at least {one.certified_at_least:.4f} of the votes; "
                f"{one.attackers} left it at most {one.at_most:.4f} ({one.label_votes} of "
                f"{one.models} models, the next label {one.other_votes})",
            )


def _word(flipped: bool, *, within: bool, refuted: bool) -> str:
    if within and refuted:
        return "REFUTED"
    return "flipped, beyond the bound" if flipped else "holds"
