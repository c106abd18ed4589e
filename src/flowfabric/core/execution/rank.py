"""The order of claims: higher priority first, then the older one."""

from flowfabric.core.base.time import Millis

MAX_PRIORITY = 9000

# Strictly larger than any time between two creations, so that priority always beats age.
RANK_STEP = 100_000_000_000_000
"""Rank distance between two neighbouring priorities."""


def clamp_priority(priority: int) -> int:
    return max(0, min(MAX_PRIORITY, priority))


def rank_of(created_at: Millis, priority: int, step: int = RANK_STEP) -> int:
    """One number that orders claims: higher priority first, then the older one. With a smaller
    step, executions age: each step of waiting is worth one point of priority."""
    return created_at - priority * step
