"""Flower's SecAgg+, if the extra `precad[bench]` is installed."""
