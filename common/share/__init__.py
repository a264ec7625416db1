"""What a client sends to each server: masks, salted commitments, a signed header, a body."""
