"""What servers A and B have in common; no other party may import it."""
