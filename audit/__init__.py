"""An audit: what an adversary really learns of canaries, beside what the accountants state.

Whatever takes a parameter raises Misconfiguration where that is out of its range.
"""
