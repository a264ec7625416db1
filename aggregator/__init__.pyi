# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.aggregator.attempt_states import (
    Counted as Counted,
    Finished as Finished,
    Matched as Matched,
    Noised as Noised,
    Opened as Opened,
    Prepared as Prepared,
    Sent as Sent,
    Summed as Summed,
)
from precad.aggregator.cut_shares import (
    CutShares as CutShares,
)
from precad.aggregator.noise import (
    DrawnAhead as DrawnAhead,
    NoiseSource as NoiseSource,
    server_noise as server_noise,
)
from precad.aggregator.peer_link import (
    Frame as Frame,
    FrameTransport as FrameTransport,
    PeerLink as PeerLink,
    SETUP_ATTEMPT as SETUP_ATTEMPT,
)
from precad.aggregator.release import (
    add_noise as add_noise,
    aggregate as aggregate,
    countersign as countersign,
    prepare as prepare,
    reconstruct as reconstruct,
)
from precad.aggregator.server_messages import (
    Bytes32 as Bytes32,
    ClientName as ClientName,
    Cohort as Cohort,
    CoinCommitment as CoinCommitment,
    CoinOpening as CoinOpening,
    EnrolmentEntry as EnrolmentEntry,
    Evidence as Evidence,
    Fact as Fact,
    HeadBody as HeadBody,
    Message as Message,
    ModelBody as ModelBody,
    Number as Number,
    OpenedCount as OpenedCount,
    Position as Position,
    ServerSignatures as ServerSignatures,
    SetCheck as SetCheck,
    SignedMessage as SignedMessage,
    Step as Step,
    Verdict as Verdict,
    WorkerCount as WorkerCount,
    WorkerState as WorkerState,
    Workers as Workers,
    exchange as exchange,
    read_body as read_body,
)
from precad.aggregator.server_process import (
    PeerService as PeerService,
    peers_of as peers_of,
    run_server as run_server,
)
from precad.aggregator.settings import (
    ServerASettings as ServerASettings,
    ServerBSettings as ServerBSettings,
    ServerSettings as ServerSettings,
)
