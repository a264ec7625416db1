"""Plain federated averaging, the least that a round can be."""
