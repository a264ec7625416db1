"""A whole training on one server: its state, its rounds, its recovery, its end."""
