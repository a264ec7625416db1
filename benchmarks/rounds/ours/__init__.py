"""precad itself, measured from outside."""
