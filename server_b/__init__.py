"""The helper: second share, own noise, checks what A proposes."""
