"""Real processes of a deployment without their seconds of imports: forked from a warm parent.

One parent for all tests of this process. What is about the start itself starts parts as people do.
"""

import functools
import os
from pathlib import Path
from typing import Any

from tests.rig.leftovers import at_the_end

import precad
from precad.cli.demo.warm import WarmStarter
from precad.experiments.local.deployment import environment_of_parts

SOURCES = os.pathsep.join(map(str, (Path(precad.__file__).parents[1], Path(__file__).parents[2])))
"""Where processes find precad, installed or not, and these tests."""


@functools.cache
def _starter() -> WarmStarter:
    starter = WarmStarter()
    starter.warm(environment_of_parts() | {"PYTHONPATH": SOURCES})
    # The parent ends with this process, however it ends, and so does all that it has started.
    at_the_end(starter.close)
    return starter


def forked(arguments: list[str], **options: Any) -> Any:
    """In place of ``subprocess.Popen`` for ``LocalDeployment``."""
    options["env"] = options["env"] | {"PYTHONPATH": SOURCES}
    return _starter()(arguments, **options)
