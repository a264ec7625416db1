"""Server A, the leader: it draws the cohort, drives rounds and serves the model."""
