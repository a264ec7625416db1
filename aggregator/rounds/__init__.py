"""One round between the two servers: open, match, validate, release, reconstruct."""
