# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.common.wire.calls import (
    LINKED as LINKED,
    OperatorConnection as OperatorConnection,
    ServerStatus as ServerStatus,
    StepCost as StepCost,
    StreamCall as StreamCall,
    call_with_retries as call_with_retries,
    collected as collected,
    error_of as error_of,
    errors_of as errors_of,
    is_serving as is_serving,
)
from precad.common.wire.connections import (
    Caller as Caller,
    Connections as Connections,
    connections_for as connections_for,
)
from precad.common.wire.guarded_port import (
    Call as Call,
    CallRate as CallRate,
    GuardedPort as GuardedPort,
    OpenCalls as OpenCalls,
)
from precad.common.wire.messages import (
    Body as Body,
    FieldValue as FieldValue,
    Notice as Notice,
    Opening as Opening,
    RoundOpen as RoundOpen,
    RoundOver as RoundOver,
    Statement as Statement,
    TrainingOver as TrainingOver,
    TrainingPaused as TrainingPaused,
    read_notice as read_notice,
    rejection_of as rejection_of,
    serves_first as serves_first,
    sign_body as sign_body,
    values_of as values_of,
)
from precad.common.wire.metrics_page import (
    about as about,
    metric as metric,
)
from precad.common.wire.serving import (
    Context as Context,
    NOT_NOW as NOT_NOW,
    SERVER_OPTIONS as SERVER_OPTIONS,
    STREAMED_BYTES as STREAMED_BYTES,
    add_health as add_health,
    check_task as check_task,
    end_call as end_call,
    refusing as refusing,
    set_when_told_to_stop as set_when_told_to_stop,
)
