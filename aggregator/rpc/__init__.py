"""A server process: what A, B and the dealer need around the protocol."""
