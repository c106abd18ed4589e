"""Quotas, budgets and lanes: what may start, and what may be spent."""
