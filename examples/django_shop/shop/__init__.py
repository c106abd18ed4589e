"""Orders, and what happens to them."""
