"""Attacks by name: what one adversary in control of all bad clients does."""

from research.poisoning.attack import ATTACKS, Attack, Scene, per_client_share, poisoned

__all__ = ["ATTACKS", "Attack", "Scene", "per_client_share", "poisoned"]
