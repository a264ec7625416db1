"""Identities: certificates and keys, mutual TLS 1.3, and what each role may call."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
