"""From what an owner has (a file, a frame, arrays, a Dataset) to records, once, before enrolment.

Whatever can't be used is found here, where refusing is still the owner's own affair: a cell that
isn't a number, a value that is missing, a level that nobody listed. Later nothing is read again.
"""

from precad.client.read.columns import Columns
from precad.client.read.source import read_inputs, read_records

__all__ = ["Columns", "read_inputs", "read_records"]
