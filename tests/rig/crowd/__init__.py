"""Many light clients in one process, honest and bad, against a deployment's real servers."""
