"""Algorithm 2 of PRECAD: gradients of single records, clipped, encoded and summed."""
