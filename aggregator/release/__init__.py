"""From validated shares to the next model: sum, noise, charge, release, reconstruct."""
