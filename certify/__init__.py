"""The one certifier: guarantees as curves, and what follows from them (docs/certificates.md)."""
