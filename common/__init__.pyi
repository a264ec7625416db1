# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.common.arrays import (
    AnyNumbers as AnyNumbers,
    Booleans as Booleans,
    Floats as Floats,
    Floats32 as Floats32,
    Integers as Integers,
    Words as Words,
)
from precad.common.checks import (
    inside_unit_interval as inside_unit_interval,
    parsed as parsed,
    parsed_toml as parsed_toml,
    read_toml as read_toml,
    refusal as refusal,
)
from precad.common.clock import (
    CLOCK as CLOCK,
    Clock as Clock,
    Retries as Retries,
    RetryPolicy as RetryPolicy,
    STOP_S as STOP_S,
    call_in as call_in,
    end_within as end_within,
    start_thread as start_thread,
    wait_at_most as wait_at_most,
)
from precad.common.errors import (
    AccessDenied as AccessDenied,
    AlreadyReleased as AlreadyReleased,
    BodyUnreadable as BodyUnreadable,
    BudgetExceeded as BudgetExceeded,
    Denial as Denial,
    MAX_TEXT as MAX_TEXT,
    MayPass as MayPass,
    Misconfiguration as Misconfiguration,
    Misidentified as Misidentified,
    NOT_IN_TIME as NOT_IN_TIME,
    NameInUse as NameInUse,
    NotOnOffer as NotOnOffer,
    PeerUnavailable as PeerUnavailable,
    PeerViolation as PeerViolation,
    PrecadError as PrecadError,
    RejectedSubmission as RejectedSubmission,
    Rejection as Rejection,
    StorageFailure as StorageFailure,
    StorageGone as StorageGone,
    TaskMismatch as TaskMismatch,
    TooManyCalls as TooManyCalls,
    WrongTime as WrongTime,
    log as log,
    missing as missing,
    one_line as one_line,
    without_logins as without_logins,
)
from precad.common.files import (
    FOLDER_MODE as FOLDER_MODE,
    FileStamp as FileStamp,
    PRIVATE_MODE as PRIVATE_MODE,
    PUBLIC_FOLDER_MODE as PUBLIC_FOLDER_MODE,
    PUBLIC_MODE as PUBLIC_MODE,
    append_line as append_line,
    file_stamp as file_stamp,
    make_folder as make_folder,
    read_regular as read_regular,
    remove_drafts as remove_drafts,
    state_lock as state_lock,
    to_append as to_append,
    waiting_lock as waiting_lock,
    write_file as write_file,
    write_files as write_files,
    writing as writing,
)
from precad.common.fixed_point import (
    RECORD_MARGIN as RECORD_MARGIN,
    clip_record_adaptively as clip_record_adaptively,
    clip_record_norm as clip_record_norm,
    clip_update as clip_update,
    squared_norm as squared_norm,
)
from precad.common.frozen import (
    frozen_dataclass as frozen_dataclass,
    frozen_kw_only_dataclass as frozen_kw_only_dataclass,
)
from precad.common.identifiers import (
    ATTEMPTS as ATTEMPTS,
    ClientId as ClientId,
    DIGEST_BYTES as DIGEST_BYTES,
    Digest as Digest,
    Role as Role,
    SERVERS as SERVERS,
    Secret as Secret,
    submission_id as submission_id,
)
from precad.common.mechanism import (
    Answers as Answers,
    Claim as Claim,
    Contribution as Contribution,
    LocalTraining as LocalTraining,
    MAX_BOUND as MAX_BOUND,
    Mechanism as Mechanism,
    ModelStep as ModelStep,
    NOISE_DEVIATIONS as NOISE_DEVIATIONS,
    NOT_PRESENCE as NOT_PRESENCE,
    SampledGradients as SampledGradients,
    Unit as Unit,
    assumed_of_claims as assumed_of_claims,
)
from precad.common.model import (
    ModelVector as ModelVector,
    apply_update as apply_update,
    byte_view as byte_view,
    continued as continued,
    digest_of_model as digest_of_model,
    initial_vector as initial_vector,
    load_model as load_model,
    most_bytes as most_bytes,
    read_weights as read_weights,
    recipe_digest as recipe_digest,
    save_model as save_model,
    tensors as tensors,
    trained_model as trained_model,
    weights_digest as weights_digest,
)
from precad.common.npy import (
    Array as Array,
    read_npy as read_npy,
    read_npz as read_npz,
    require_room as require_room,
)
from precad.common.prefix_sums import (
    first_column as first_column,
    first_entry as first_entry,
)
from precad.common.process import (
    PIECES as PIECES,
    doing as doing,
    dump_stacks_on_signal as dump_stacks_on_signal,
    give_back_freed as give_back_freed,
    keep_freed_buffers as keep_freed_buffers,
    let_go_of_loaded as let_go_of_loaded,
    listed as listed,
    open_closed_streams as open_closed_streams,
    start_log as start_log,
    take_over_stderr as take_over_stderr,
)
from precad.common.process_settings import (
    Address as Address,
    DiallingSettings as DiallingSettings,
    HttpProxy as HttpProxy,
    ListenAddress as ListenAddress,
    ProcessSettings as ProcessSettings,
    address_fault as address_fault,
    by_proxy as by_proxy,
    proxy_of as proxy_of,
    split_address as split_address,
    wait_for_address as wait_for_address,
)
from precad.common.proof_shape import (
    HALF_WIDTHS as HALF_WIDTHS,
    LEAST_ROWS as LEAST_ROWS,
    P as P,
    ProofShape as ProofShape,
)
from precad.common.question_rules import (
    LEFT_OUT as LEFT_OUT,
    MOST_OWNERS as MOST_OWNERS,
    filled as filled,
    fixed as fixed,
    too_coarse as too_coarse,
)
from precad.common.questions import (
    BOX_PLOT as BOX_PLOT,
    Block as Block,
    LEAST_UNIT as LEAST_UNIT,
    MISSING as MISSING,
    Number as Number,
    Query as Query,
    Questions as Questions,
    BINARY as BINARY,
)
from precad.common.releases import (
    this_build as this_build,
)
from precad.common.ring import (
    CACHED_WORDS as CACHED_WORDS,
    KEY_BYTES as KEY_BYTES,
    Keystream as Keystream,
    MODULUS as MODULUS,
    RingVector as RingVector,
    SALT_BYTES as SALT_BYTES,
    SEED_BYTES as SEED_BYTES,
    WORD_BYTES as WORD_BYTES,
    derive as derive,
    digest_of as digest_of,
    encode_context as encode_context,
    fill as fill,
    mask_stream as mask_stream,
    view_words as view_words,
)
from precad.common.roster import (
    Enrolment as Enrolment,
    Roster as Roster,
    excess_of_clip as excess_of_clip,
    most_records as most_records,
    on_grid as on_grid,
    unlike_plan as unlike_plan,
)
from precad.common.short_words import (
    packed_bytes as packed_bytes,
    read_step as read_step,
    step_bytes as step_bytes,
    step_digest as step_digest,
)
from precad.common.submission import (
    Body as Body,
    BodyHash as BodyHash,
    CHUNK_BYTES as CHUNK_BYTES,
    HeldBody as HeldBody,
    MAX_CERTIFICATES as MAX_CERTIFICATES,
    MAX_CERTIFICATE_BYTES as MAX_CERTIFICATE_BYTES,
    MAX_SIGNATURE_BYTES as MAX_SIGNATURE_BYTES,
    MESSAGE_BYTES as MESSAGE_BYTES,
    Signature as Signature,
    SignedHeader as SignedHeader,
    Signer as Signer,
    Submission as Submission,
    SubmissionContext as SubmissionContext,
    Verifier as Verifier,
    body_hasher as body_hasher,
    in_pieces as in_pieces,
    shard as shard,
    whole_digest as whole_digest,
)
from precad.common.task import (
    MOST_DELTA as MOST_DELTA,
    ROOM_IN_SIZES as ROOM_IN_SIZES,
    TAU as TAU,
    Task as Task,
    check_delta as check_delta,
    require_dealer as require_dealer,
    with_objective as with_objective,
)
from precad.common.task_schema import (
    Column as Column,
    Count as Count,
    DataSection as DataSection,
    LossName as LossName,
    ModelSection as ModelSection,
    Name as Name,
    ObjectiveSection as ObjectiveSection,
    Parameter as Parameter,
    Positive as Positive,
    Section as Section,
    level_text as level_text,
)
from precad.common.terminal import (
    AlignedTable as AlignedTable,
    Bar as Bar,
    between as between,
    console_of as console_of,
    json_of as json_of,
    plain as plain,
    redraws as redraws,
    say as say,
    upper as upper,
)
