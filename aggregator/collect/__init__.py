"""Receive submissions in pieces, check them as they come, and match both servers'."""
