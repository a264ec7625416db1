"""An owner's records, from its files and frames to tensors."""
