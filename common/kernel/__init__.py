"""The loops that are worth machine code: projections of words on rows of bits, shares, keystreams.

``numpy_projection.py`` and ``numpy_share.py`` say what is computed, and are used where nothing was
compiled; keys are then expanded by OpenSSL.
"""
