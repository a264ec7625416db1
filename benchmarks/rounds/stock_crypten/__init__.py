"""Stock CrypTen doing the paper's norm check."""
