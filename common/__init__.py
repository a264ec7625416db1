"""Code that clients, the two servers and the dealer share, one module an idea.

What stands here directly is the task, the model, the ring and a client's submission,
and what every process needs: errors, settings, files, time and its log. ``identity``
has certificates and mutual TLS, ``kernel`` the compiled arithmetic, and ``wire`` the
calls between processes. Other parts take names from here: ``from precad.common import
Task``.
"""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
