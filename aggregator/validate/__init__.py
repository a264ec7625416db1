"""Norm validation over Z_2^64 that can't be forged: a range test and the exact norm, one bit."""
