"""Privacy accounting: mechanisms as events, accountants, and this system's three guarantees.

docs/privacy-accounting.md states every bound with its assumptions and source. Nothing is imported
here: a client loads ``participations`` alone.
"""
