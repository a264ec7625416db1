"""What a line of the log names, and the fields beside it.

The round's own line, with who counted and who was rejected, is followed in a real
training: ``tests/integration/deployment/test_one_submission.py``.
"""

import json
import logging

import pytest

from precad.common.identifiers import ClientId, Digest, submission_id
from precad.common.process import MOST_LISTED, JsonLines, doing, listed, warn
from precad.common.submission import SubmissionContext

MODEL = Digest(b"\1" * 32)
CONTEXT = SubmissionContext(
    task=MODEL, version=28, attempt=30, client=ClientId("west-ward"), model=MODEL
)


def test_a_line_names_as_many_as_fit_there() -> None:
    names = [f"ward-{number:04} 0123456789ab" for number in range(1000)]
    text = listed(names)
    assert text.startswith(f" ({names[0]}, {names[1]}, ")
    assert text.endswith(f", {names[MOST_LISTED - 1]}, {1000 - MOST_LISTED} more)")
    assert len(text) < 500
    assert (listed(names[:1]), listed([])) == (f" ({names[0]})", "")


def test_a_submissions_line_says_the_same_in_words_and_in_fields(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the process is at another attempt meanwhile."""
    monkeypatch.setattr("precad.common.process._fields", {})
    doing(part="server-a", version=27, attempt=29)
    warn(CONTEXT.followed, "its body won't count: gone")
    fields = json.loads(JsonLines().format(caplog.records[-1]))
    submission = submission_id(CONTEXT.digest.value)
    assert fields["message"] == (
        f"version 28, attempt 30, owner west-ward, submission {submission}:"
        " its body won't count: gone"
    )
    del fields["time"], fields["level"], fields["message"]
    assert fields == {"part": "server-a", **CONTEXT.followed}
    assert str(CONTEXT.digest).startswith(submission)
    assert len(submission) == 12


def test_a_line_about_a_version_alone_has_no_other_versions_attempt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precad.common.process._fields", {})
    doing(version=27, attempt=29)
    logging.getLogger("precad").warning("asked", extra={"version": 28, "owner": "ward"})
    fields = json.loads(JsonLines().format(caplog.records[-1]))
    assert (fields["version"], fields["owner"], "attempt" in fields) == (
        28,
        "ward",
        False,
    )
