"""Who takes part: claims, admission, and the roster that both servers freeze."""
