"""Two-party computation: CrypTen's arithmetic over our own link and dealt randomness."""
