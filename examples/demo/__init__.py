"""The demo: `make demo`, a private training with every part a process of this machine.

It is no part of the wheel, and imports what is.
"""
