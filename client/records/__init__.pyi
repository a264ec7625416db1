# Where each name of the package is at home: __init__.py reads this file.
# ruff: noqa: I001 -- one import a module.

from precad.client.records.columns import (
    ColumnCells as ColumnCells,
    ColumnNotes as ColumnNotes,
    Columns as Columns,
    identifiers_of as identifiers_of,
    inputs_of as inputs_of,
    targets_of as targets_of,
)
from precad.client.records.containers import (
    Cell as Cell,
    ColumnTable as ColumnTable,
    exact as exact,
    float_type as float_type,
    level_of as level_of,
    name_of as name_of,
    number_of as number_of,
    plain_float as plain_float,
)
from precad.client.records.read_records import (
    OwnerData as OwnerData,
    identifiers_beside as identifiers_beside,
    read_column as read_column,
    read_inputs as read_inputs,
    table_of as table_of,
)
from precad.client.records.torch_records import (
    MEND as MEND,
    Records as Records,
    as_inputs as as_inputs,
    as_records as as_records,
    records_in_task as records_in_task,
    require_others as require_others,
)
from precad.client.records.units import (
    Units as Units,
    require_known_units as require_known_units,
)
