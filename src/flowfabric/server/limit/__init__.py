"""Routes of budgets, quotas and lanes."""
