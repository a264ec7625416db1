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

BUGS = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)


"""How a call ends whose handler raised something unforeseen; or as ``NOT_NOW``."""


@dataclass(frozen=True, slots=True)
class Target:
    """A parser and what it usually reads."""

    parse: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]

    def check(self, data: bytes) -> None:
        """Parse; any error but ours, or one of ours without bounds, is raised."""
        try:
            self.parse(data)
        except PrecadError as error:
            _check_text(str(error))
        except Aborted as ended:
            if ended.code in BUGS or ended.details == NOT_NOW:
                raise
            _check_text(ended.details)


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise AssertionError(f"an error of {len(text)} characters")


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
