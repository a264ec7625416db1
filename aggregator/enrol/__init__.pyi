# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.aggregator.enrol.admission import (
    Admission as Admission,
    ByToken as ByToken,
    Window as Window,
    admission_of as admission_of,
    new_token as new_token,
    token_digest as token_digest,
    window_of as window_of,
)
from precad.aggregator.enrol.agreement import (
    accept_roster as accept_roster,
    agree_nonces as agree_nonces,
    agree_set_secret as agree_set_secret,
    propose_roster as propose_roster,
)
from precad.aggregator.enrol.register import (
    Register as Register,
)
