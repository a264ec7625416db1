"""Privacy accounting: mechanisms as events, accountants, this system's guarantees.

Every function that takes a parameter raises Misconfiguration where that is out of its
range.
"""
