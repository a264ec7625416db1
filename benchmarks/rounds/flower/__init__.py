"""Flower's own federated averaging, if the extra `precad[bench]` is installed."""
