"""Audits of builds that are broken on purpose, of owners' presence, and of certificates.

``python -m research.audits other-silent-deployed presence-unchecked`` plays the named
audits, and ``python -m research.audits`` all: two hundred of the sound build, the
demo's task and the broken builds, each as a simulation and as real processes;
certificates are attacked where norms are checked and where they aren't, and by claims,
with a planned denominator and with the roster's.

The result is written after each audit, and a run goes on where it was broken off. Seeds
are the audits' numbers, so that every figure can be repeated.
"""

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from research.audits import claims, presence
from research.audits.builds import RELEASES, Build, demo_audit, less_noise, train
from research.audits.canary_training import (
    SIGNIFICANCE,
    Designed,
    audit,
    designed,
    planned,
)
from research.audits.certificate import BUILDS, audit_certificates, certifiable
from research.audits.deployed import train as play
from research.audits.deployed import train_present as play_present

RESULT = Path(__file__).parent / "results" / "audit.json"
SOUND = 100
CERTIFYING = 200
"""Models of each ensemble that certifies, or attacks what is certified."""


@dataclass(frozen=True)
class Case:
    """One audit; ``rounds`` of 0 is the demo's task, whose canaries have one coin each."""

    build: Build
    canaries: int
    rounds: int = 0
    seed: int = 1
    deployed: bool = False
    present: bool = False
    looks: int | None = None


# Canaries and rounds at which each fault shows; the half noise is the hardest.
FAULTS = {
    Build.HALF_NOISE: (1000, 200),
    Build.OTHER_SILENT: (1000, 1),
    Build.REDRAWN: (1000, 6),
    Build.UNCLIPPED: (1000, 4),
}
OWNERS_FAULTS = {
    Build.SOUND: (20, 25),
    Build.HALF_NOISE: (500, 400),
    Build.UNCHECKED: (20, 25),
}
CASES = {
    **{
        f"demo{name}": Case(Build.SOUND, 2000, deployed=deployed)
        for name, deployed in (("", False), ("-deployed", True))
    },
    **{
        f"{build.value}{name}": Case(build, *size, deployed=deployed)
        for build, size in FAULTS.items()
        for name, deployed in (("", False), ("-deployed", True))
    },
    # Server B has a sound server A release again and again.
    "looked-deployed": Case(
        Build.SOUND, *FAULTS[Build.REDRAWN], deployed=True, looks=RELEASES
    ),
    **{
        f"presence-{build.value}{name}": Case(
            build, *size, deployed=deployed, present=True
        )
        for build, size in OWNERS_FAULTS.items()
        for name, deployed in (("", False), ("-deployed", True))
        # Sixty thousand submissions.
        if not (deployed and build is Build.HALF_NOISE)
    },
    **{
        f"sound-{number:03d}": Case(Build.SOUND, 500, 4, 1000 + number)
        for number in range(SOUND)
    },
    **{
        f"present-{number:03d}": Case(Build.SOUND, 500, 4, 1000 + number, present=True)
        for number in range(SOUND)
    },
}


def of_records(case: Case) -> list[dict[str, Any]]:
    """An audit whose canaries are records."""
    made: Designed = (
        designed(case.canaries, case.rounds, case.seed)
        if case.rounds
        else demo_audit("digits", case.canaries, case.seed)
    )
    plans = planned(made, 1, less=less_noise(case.build))
    trained = (
        play(made, build_of=case.build, looks=case.looks)
        if case.deployed
        else train(made, case.build, case.seed)
    )
    found = audit(plans, [(trained, made)])
    return [verdict.to_json() for verdict in found]


def of_owners(case: Case) -> list[dict[str, Any]]:
    """An audit whose canaries are owners."""
    made = presence.present(case.canaries, case.rounds, case.seed)
    power = made.plan(SIGNIFICANCE, case.build)
    models = (
        play_present(made, build_of=case.build)
        if case.deployed
        else presence.train(made, build_of=case.build, seed=case.seed)
    )
    return [presence.audit(made, power, models, SIGNIFICANCE).to_json()]


def audited(case: Case) -> dict[str, Any]:
    """One audit, and how long it took."""
    started = time.perf_counter()
    verdicts = of_owners(case) if case.present else of_records(case)
    return {
        **asdict(case),
        "seconds": round(time.perf_counter() - started, 1),
        "refuted": any(verdict["refuted"] for verdict in verdicts),
        "verdicts": verdicts,
    }


def _word(refuted: bool) -> str:
    return "refuted" if refuted else "not refuted"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (x.split(":")[1].strip() for x in lines if x.startswith("model name")),
        "unknown",
    )


def main() -> None:
    """Play the audits that the result doesn't have yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        help=f"certificate-{{build}}, claims-{{attack}}[-roster], or of {', '.join(CASES)}",
    )
    parser.add_argument(
        "--result", type=Path, default=RESULT, help="what was found, as JSON"
    )
    given = parser.parse_args()
    found: dict[str, Any] = {"audits": {}}
    if given.result.exists():
        found = json.loads(given.result.read_text(encoding="utf-8"))
    found["hardware"] = {"processor": _processor(), "cores": os.cpu_count()}
    attacked = {f"certificate-{build}": loose for build, loose in BUILDS.items()}
    claimed = {
        f"claims-{name}{roster}": (attack, None if roster else sum(attack.before))
        for name, attack in claims.ATTACKS.items()
        for roster in ("", "-roster")
    }
    for name in given.names or (*attacked, *claimed, *CASES):
        if name in found or name in found["audits"]:
            continue
        if name in attacked:
            verdict = audit_certificates(
                certifiable(1), CERTIFYING, 1, loose=attacked[name]
            )
            found[name] = {"seed": 1, "models": CERTIFYING, **verdict.to_json()}
            click.echo(f"{name}: {_word(verdict.refuted)}")
        elif name in claimed:
            attack, planned_units = claimed[name]
            left = claims.play(attack, planned_units, models=CERTIFYING, seed=1)
            found[name] = left.to_json()
            click.echo(f"{name}: {_word(left.refuted)}")
        else:
            one = found["audits"][name] = audited(CASES[name])
            click.echo(f"{name}: {_word(one['refuted'])}, {one['seconds']} s")
        sound = [
            one for one in found["audits"].values() if one["build"] == Build.SOUND.value
        ]
        found["sound_audits"] = len(sound)
        found["false_alarms"] = sum(one["refuted"] for one in sound)
        given.result.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
