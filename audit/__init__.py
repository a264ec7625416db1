"""An audit: what an adversary learns of canaries, beside what accountants state.

Whatever takes a parameter raises Misconfiguration where that is out of its range.
"""
