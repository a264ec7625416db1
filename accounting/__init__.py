"""Privacy accounting: mechanisms as events, accountants, and this system's three guarantees.

Whatever takes a parameter raises Misconfiguration where that is out of its range.
"""
