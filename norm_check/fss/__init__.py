"""Function secret sharing: two keys to one secret function; each alone says nothing of it."""
