"""What audits find: a hundred of the sound build, the demo's task, and four broken builds.

The demo's task is audited as a simulation and as real processes, and so is one broken build.
Certificates are attacked where norms are checked and where they aren't.

Writes results/audit.json after each audit, and goes on where it was broken off. Seeds are the
audits' numbers, so that every figure can be repeated.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precad.cli.audit.deployed import train as play
from precad.experiments.audit import presence
from precad.experiments.audit.certificate import BUILDS, audit_certificates, certifiable
from precad.experiments.audit.demo import demo_audit
from precad.experiments.audit.designed import LOUDER, Designed, designed
from precad.experiments.audit.run import SIGNIFICANCE, Repetition, audit, planned
from precad.experiments.audit.simulated import Build, train

RESULT = Path(__file__).parent / "results" / "audit.json"
SOUND, SOUND_CANARIES = 100, 500
# Canaries and trainings at which each fault shows; the half noise is the hardest.
BROKEN = {
    Build.HALF_NOISE: (1000, 64),
    Build.OTHER_SILENT: (1000, 1),
    Build.REDRAWN: (1000, 16),
    Build.UNCLIPPED: (1000, 4),
}
DEMO_CANARIES = 2000
PRESENT = 1000
"""Owners, each a canary."""
CERTIFYING = 200
"""Models of each ensemble that certifies, or attacks what is certified."""


@dataclass(frozen=True)
class Case:
    """One audit."""

    build: Build
    canaries: int
    repetitions: int = 1
    first: int = 1
    demo: bool = False
    deployed: bool = False


CASES = {
    "demo": Case(Build.SOUND, DEMO_CANARIES, demo=True),
    "demo-deployed": Case(Build.SOUND, DEMO_CANARIES, demo=True, deployed=True),
    "other-silent-deployed": Case(Build.OTHER_SILENT, 1000, deployed=True),
    **{build.value: Case(build, *size) for build, size in BROKEN.items()},
    **{
        f"sound-{number:03d}": Case(Build.SOUND, SOUND_CANARIES, first=1000 + number)
        for number in range(SOUND)
    },
}


def audited(case: Case) -> dict[str, Any]:
    """One audit, and how long it took."""
    started = time.perf_counter()

    def made(seed: int) -> Designed:
        if case.demo:
            return demo_audit("digits", case.canaries, seed)
        return designed(case.canaries, seed, LOUDER)

    def trainings() -> Any:
        for seed in range(case.first, case.first + case.repetitions):
            one = made(seed)
            trained = (
                play(one, build_of=case.build)
                if case.deployed
                else train(one.task, one.shares, one.canaries, build_of=case.build, seed=seed)
            )
            yield Repetition(trained, one.shares, one.canaries)

    plans = planned(made(case.first).task, case.canaries, case.repetitions)
    verdicts = [verdict.to_json() for verdict in audit(plans, trainings())]
    return {
        "build": case.build.value,
        "demo": case.demo,
        "deployed": case.deployed,
        "canaries": case.canaries,
        "repetitions": case.repetitions,
        "seed": case.first,
        "seconds": round(time.perf_counter() - started, 1),
        "refuted": any(verdict["refuted"] for verdict in verdicts),
        "verdicts": verdicts,
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def main() -> None:
    """All audits that the result doesn't have yet."""
    found: dict[str, Any] = {"audits": {}}
    if RESULT.exists():
        found = json.loads(RESULT.read_text(encoding="utf-8"))
    for build, loose in BUILDS.items():
        name = f"certificate-{build}"
        if name not in found:
            verdict = audit_certificates(certifiable(1), CERTIFYING, 1, loose=loose)
            found[name] = {"seed": 1, "models": CERTIFYING, **verdict.to_json()}
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for build, loose in presence.BUILDS.items():
        name = f"presence-{build}"
        if name not in found:
            one = presence.audit_presence(PRESENT, 1, SIGNIFICANCE, loose=loose)
            found[name] = {"seed": 1, **one.to_json()}
            RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found["hardware"] = {"processor": _processor(), "cores": os.cpu_count()}
    for name, case in CASES.items():
        if name in found["audits"]:
            continue
        found["audits"][name] = audited(case)
        sound = [one for key, one in found["audits"].items() if key.startswith("sound")]
        found["sound_audits"] = len(sound)
        found["false_alarms"] = sum(one["refuted"] for one in sound)
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(name, found["audits"][name]["refuted"], found["audits"][name]["seconds"])


if __name__ == "__main__":
    main()
