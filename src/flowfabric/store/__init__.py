"""Stores: rows, no rules."""
