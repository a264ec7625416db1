"""Server B, the helper: it holds the second share, adds noise, and checks A."""
