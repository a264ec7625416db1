"""The migrations, in the order of their revision numbers."""
