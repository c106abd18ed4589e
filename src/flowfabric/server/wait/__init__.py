"""Routes of waitpoints: signals, approvals, and the keys that sign their tokens."""
