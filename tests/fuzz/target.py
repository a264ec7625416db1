"""What a fuzz target is: a function of bytes that raises PrecadError alone, and its seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import grpc
import numpy as np
from tests.fuzz.stage import CLIENT, OPENINGS, ROUND, SEED_HOLDER, VERSION, Aborted, D, Stage

from precad.common.errors import MAX_TEXT, PrecadError
from precad.common.identifiers import Role
from precad.common.share.proof_submission import AnySubmission, ForProof
from precad.common.share.submission import SubmissionContext
from precad.common.wire.serving import NOT_NOW
from precad.norm_check.norm_proof import share

# How a call ends whose handler raised something unforeseen; or as ``NOT_NOW``.
BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
Parse = Callable[[bytes], object]
Seeds = Callable[[], Sequence[bytes]]


@dataclass(frozen=True, slots=True)
class Target:
    """A parser and what it usually reads."""

    parse: Parse
    seeds: Seeds

    def check(self, data: bytes) -> None:
        """Parse; any error but ours, or one of ours without bounds, is raised."""
        try:
            self.parse(data)
        except PrecadError as error:
            text = str(error)
        except Aborted as ended:
            if ended.code in BUGS or ended.details == NOT_NOW:
                raise
            text = ended.details
        else:
            return
        if len(text) > MAX_TEXT:
            raise AssertionError(f"an error of {len(text)} characters")


TARGETS: dict[str, Target] = {}


def target(name: str, seeds: Seeds) -> Callable[[Parse], Parse]:
    """What is decorated is a target of this name."""

    def add(parse: Parse) -> Parse:
        TARGETS[name] = Target(parse, seeds)
        return parse

    return add


@cache
def stage(validation: str = "crypten") -> Stage:
    """Made at first use, once a process."""
    return Stage(validation)


def pair(validation: str = "crypten") -> tuple[AnySubmission, AnySubmission]:
    """What an owner sends for the open attempt."""
    here = stage(validation)
    model = here.sessions[Role.SERVER_A].model_store.current.digest
    context = SubmissionContext(here.task.digest, VERSION, ROUND, CLIENT, model)
    stated = ForProof(OPENINGS, SEED_HOLDER)
    return share(here.task, np.arange(D, dtype=np.int64), context, here.signer, stated)
