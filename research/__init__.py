"""Data sets, partitions and attacks, as the papers use them."""
