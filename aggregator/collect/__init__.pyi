# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.aggregator.collect.inbox import (
    Backlog as Backlog,
    Inbox as Inbox,
)
from precad.aggregator.collect.matching import (
    Closed as Closed,
    HeldList as HeldList,
    Places as Places,
    describe as describe,
    match as match,
    rest_of as rest_of,
)
from precad.aggregator.collect.upload import (
    SUFFIX as SUFFIX,
    Spool as Spool,
    SpooledBody as SpooledBody,
    Upload as Upload,
)
