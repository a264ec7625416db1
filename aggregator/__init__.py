"""What servers A and B are alike, and nobody else may import."""
