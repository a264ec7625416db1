# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.cli.certify_answer import (
    answer as answer,
)
from precad.cli.certify_tables import (
    show_loss as show_loss,
    show_prediction as show_prediction,
    show_smoothing as show_smoothing,
)
from precad.cli.command_options import (
    CertifyRequest as CertifyRequest,
    Header as Header,
    Loss as Loss,
    OfModel as OfModel,
    OfRelease as OfRelease,
    OfTrainings as OfTrainings,
    PlanRequest as PlanRequest,
    Prediction as Prediction,
    Smoothing as Smoothing,
    Wishes as Wishes,
)
from precad.cli.cost_of_noise import (
    cost_of_rates as cost_of_rates,
    excess_of_noise as excess_of_noise,
    noise_over_signal as noise_over_signal,
)
from precad.cli.default_numbers import (
    AMPLIFIED as AMPLIFIED,
    WARM_STEP as WARM_STEP,
    class_weights as class_weights,
    cohort_rate as cohort_rate,
    default_clip as default_clip,
    default_rate as default_rate,
    default_step as default_step,
    for_whole_owners as for_whole_owners,
    given as given,
    round_seconds as round_seconds,
)
from precad.cli.ledger_command import (
    end_with as end_with,
    url_of as url_of,
)
from precad.cli.local_deployment import (
    to_toml as to_toml,
    toml_value as toml_value,
)
from precad.cli.main import (
    ARGUMENT as ARGUMENT,
    AsJson as AsJson,
    JsonObject as JsonObject,
    REQUIRED as REQUIRED,
    command as command,
    digest_of as digest_of,
    lacking as lacking,
    print_json as print_json,
    refuse_given as refuse_given,
    require_folder as require_folder,
    require_given as require_given,
    require_writable as require_writable,
)
from precad.cli.number_files import (
    read_array as read_array,
)
from precad.cli.own_ledger import (
    mine as mine,
    receipts as receipts,
    show_account as show_account,
)
from precad.cli.owner_commands import (
    files_of as files_of,
    trained as trained,
)
from precad.cli.owners_of_setup import (
    accounts_beside as accounts_beside,
    earlier_account as earlier_account,
    remarks_on_records as remarks_on_records,
)
from precad.cli.planning import (
    Plan as Plan,
)
from precad.cli.report_html import (
    page as page,
)
from precad.cli.report_page import (
    Bound as Bound,
    ChangedInputs as ChangedInputs,
    Report as Report,
    ReportedGuarantee as ReportedGuarantee,
    ReportedLedger as ReportedLedger,
    ReportedRobustness as ReportedRobustness,
    ReportedRound as ReportedRound,
    Training as Training,
    enforced as enforced,
    guarantee_sentence as guarantee_sentence,
    least as least,
    longer_update_passes as longer_update_passes,
    most as most,
    not_guaranteed as not_guaranteed,
    summary as summary,
)
from precad.cli.report_sources import (
    gather as gather,
)
from precad.cli.setting_search import (
    Setting as Setting,
    Values as Values,
    compare as compare,
    draw_settings as draw_settings,
    rows_of as rows_of,
    settings_of as settings_of,
)
from precad.cli.start import (
    said as said,
)
from precad.cli.task_command import (
    warn_of_clip as warn_of_clip,
)
from precad.cli.task_description import (
    by_class as by_class,
    described as described,
    sentences as sentences,
    written as written,
)
from precad.cli.task_planning import (
    fractional_bits as fractional_bits,
    least_noise as least_noise,
    participations_of as participations_of,
    planned as planned,
    round_in_words as round_in_words,
    sizes_of as sizes_of,
    upload_bytes as upload_bytes,
)
