"""Operations on limits: quotas, releases, budgets, lanes."""
