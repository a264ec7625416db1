"""Examples: notebooks to read, each a file, and the demo, a program in ``demo``."""
