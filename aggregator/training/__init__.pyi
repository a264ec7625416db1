# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.aggregator.training.connected_clients import (
    ConnectedClients as ConnectedClients,
    LongStream as LongStream,
    OpenWatches as OpenWatches,
)
from precad.aggregator.training.model_store import (
    ModelStore as ModelStore,
    StoredModel as StoredModel,
)
from precad.aggregator.training.reconcile import (
    charge_unknown as charge_unknown,
    give_back as give_back,
    hear_of as hear_of,
    lost_model as lost_model,
    meet as meet,
    remember as remember,
    require_nothing_lost as require_nothing_lost,
    take_back as take_back,
)
from precad.aggregator.training.recovery import (
    Recovery as Recovery,
    Remedy as Remedy,
    adoptable as adoptable,
    compare as compare,
    recover as recover,
    require_word as require_word,
    settled as settled,
)
from precad.aggregator.training.round_end import (
    Steps as Steps,
    confirm as confirm,
    keep as keep,
    say_kept as say_kept,
)
from precad.aggregator.training.session import (
    Event as Event,
    EventLog as EventLog,
    Phase as Phase,
    RoundDone as RoundDone,
    RoundOpened as RoundOpened,
    Session as Session,
    TrainingDone as TrainingDone,
    TrainingStopped as TrainingStopped,
)
from precad.aggregator.training.training_loop import (
    Dealer as Dealer,
    Peers as Peers,
    WAITS as WAITS,
    note_done as note_done,
    persist as persist,
    run_to_end as run_to_end,
    train as train,
)
