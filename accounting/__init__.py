"""Privacy accounting: mechanisms as events, accountants, and this system's three guarantees."""
