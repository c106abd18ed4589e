"""Waiting for the outside world: suspensions, waitpoints, signals, tokens."""
