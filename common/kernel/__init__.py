"""The one loop that is worth machine code: projections of words on rows of bits.

``numpy_projection.py`` says what is computed, and is used where nothing was compiled.
"""
