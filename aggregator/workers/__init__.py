"""More than one core, more than one machine: workers that validate, in pairs, for the servers."""
