"""Everything that may be wrong before a data owner enrols, found at once, in sentences."""
