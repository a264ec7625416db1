"""The one certifier: guarantees as curves, and what follows from them.

docs/certificates.md has the mathematics. Every function that takes a parameter raises
Misconfiguration where that is out of its range.
"""
