"""DP-CERT's experiments: private models, smoothed when they are used, and certified."""
