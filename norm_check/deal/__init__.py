"""Correlated randomness: what the dealer gives, and what each server makes of it."""
