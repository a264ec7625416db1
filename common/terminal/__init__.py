"""What a person sees on a terminal; nothing of it is loaded where nobody looks."""
