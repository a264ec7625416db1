"""The one loop that is worth machine code: projections of words on rows of bits.

``kernel.project_blocks`` says in NumPy what is computed, and is used where nothing was compiled.
"""
