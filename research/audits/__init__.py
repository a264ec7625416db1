"""Audits of builds that are broken on purpose, of owners' presence and of certificates."""
