"""The leader: selects the cohort, drives rounds, serves the model."""
