"""Receiving submissions: uploads in pieces, checked as they arrive, held until it closes."""
