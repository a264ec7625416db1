"""Identities: certificates and keys, mutual TLS 1.3, and what each role may call."""
