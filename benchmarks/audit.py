"""What audits find: a hundred of the sound build, the demo's task, and four broken builds.

Writes results/audit.json after each audit, and goes on where it was broken off. Seeds are the
audits' numbers, so that every figure can be repeated.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from precad.experiments.audit.demo import demo_audit
from precad.experiments.audit.designed import LOUDER, Designed, designed
from precad.experiments.audit.run import Repetition, audit, planned
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


def audited(
    build: Build, canaries: int, repetitions: int, first: int, *, demo: bool = False
) -> dict[str, Any]:
    """One audit, and how long it took."""
    started = time.perf_counter()

    def made(seed: int) -> Designed:
        return demo_audit("digits", canaries, seed) if demo else designed(canaries, seed, LOUDER)

    def trainings() -> Any:
        for seed in range(first, first + repetitions):
            one = made(seed)
            trained = train(one.task, one.shares, one.canaries, build_of=build, seed=seed)
            yield Repetition(trained, one.shares, one.canaries)

    plans = planned(made(first).task, canaries, repetitions)
    verdicts = [verdict.to_json() for verdict in audit(plans, trainings())]
    return {
        "build": build.value,
        "demo": demo,
        "canaries": canaries,
        "repetitions": repetitions,
        "seed": first,
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
    found["hardware"] = {"processor": _processor(), "cores": os.cpu_count()}
    wanted: dict[str, Any] = {
        "demo": (Build.SOUND, DEMO_CANARIES, 1, 1, True),
        **{build.value: (build, *size, 1, False) for build, size in BROKEN.items()},
        **{
            f"sound-{number:03d}": (Build.SOUND, SOUND_CANARIES, 1, 1000 + number, False)
            for number in range(SOUND)
        },
    }
    for name, (build, canaries, repetitions, first, demo) in wanted.items():
        if name in found["audits"]:
            continue
        found["audits"][name] = audited(build, canaries, repetitions, first, demo=demo)
        sound = [one for key, one in found["audits"].items() if key.startswith("sound")]
        found["sound_audits"] = len(sound)
        found["false_alarms"] = sum(one["refuted"] for one in sound)
        RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(name, found["audits"][name]["refuted"], found["audits"][name]["seconds"])


if __name__ == "__main__":
    main()
