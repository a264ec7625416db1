"""The data owner: training, encoding, submitting."""
