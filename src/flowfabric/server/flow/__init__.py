"""Routes of flows."""
