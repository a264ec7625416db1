"""Features that each owner computes of each record alone, by fixed rules: they cost no privacy."""
