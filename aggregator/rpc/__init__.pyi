# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.aggregator.rpc.aggregation_service import (
    AggregationService as AggregationService,
)
from precad.aggregator.rpc.dealer_client import (
    RemoteDealer as RemoteDealer,
    reach_dealer as reach_dealer,
)
from precad.aggregator.rpc.limits import (
    IDLE_S as IDLE_S,
    MODELS_AT_ONCE as MODELS_AT_ONCE,
    MODEL_GRACE_S as MODEL_GRACE_S,
    TransferSlot as TransferSlot,
    TransferSlots as TransferSlots,
    in_time as in_time,
)
from precad.aggregator.rpc.notices import (
    notice_of as notice_of,
    opening_of as opening_of,
    statement_of as statement_of,
    word_of as word_of,
    word_room as word_room,
)
from precad.aggregator.rpc.operation_service import (
    OperationService as OperationService,
)
from precad.aggregator.rpc.peer_transport import (
    DialledTransport as DialledTransport,
    ServedTransport as ServedTransport,
    add_link_to_server as add_link_to_server,
    dial as dial,
)
from precad.aggregator.rpc.server_metrics import (
    Metrics as Metrics,
)
