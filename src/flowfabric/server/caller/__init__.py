"""Who sends a request, and what this caller may do."""
