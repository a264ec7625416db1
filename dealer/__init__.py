"""The dealer, who deals correlated randomness to the two servers."""
