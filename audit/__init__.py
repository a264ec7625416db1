"""An audit: what an adversary really learns of canaries, beside what the accountants state."""
