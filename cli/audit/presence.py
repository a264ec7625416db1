"""`precad audit --presence`: canaries are whole owners."""

from typing import Any, TextIO

from precad.audit import presence
from precad.audit.builds import Build
from precad.audit.run import SIGNIFICANCE
from precad.cli.audit.shown import say_plan, show
from precad.common.errors import Misconfiguration

_MOST_PROCESSES = 100


def attack(
    clients: int, rounds: int, build: Build, seed: int, out: TextIO, *, deployed: bool
) -> tuple[dict[str, Any], bool]:
    """Train, guess and show it; the document, and whether the statement is refuted.

    Raises:
        Misconfiguration: more processes than a machine should have.
    """
    if deployed and clients > _MOST_PROCESSES:
        raise Misconfiguration(
            "--canaries",
            clients,
            f"each is a process with --presence and --deployed: give at most {_MOST_PROCESSES}, "
            "and --rounds for more coins",
        )
    made = presence.present(clients, rounds, seed)
    power = made.plan(SIGNIFICANCE, build)
    say_plan(out, made.statement, power, build)
    if deployed:
        from precad.cli.audit.deployed import train_present  # noqa: PLC0415

        models = train_present(made, build_of=build)
    else:
        models = presence.train(made, build_of=build, seed=seed)
    found = presence.audit(made, power, models, SIGNIFICANCE)
    show(out, [found])
    document = {
        "seed": seed,
        "build": build.value,
        "simulated": not deployed,
        "owners": clients,
        "rounds": rounds,
        "verdicts": [found.to_json()],
    }
    return document, found.refuted
