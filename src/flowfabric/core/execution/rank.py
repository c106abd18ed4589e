"""The order of claims: higher priority first, then the older one."""

from flowfabric.core.base.time import Millis

MAX_PRIORITY = 9000

# Strictly more than any span between two creations: priority always beats age.
RANK_STEP = 100_000_000_000_000
"""Rank distance between two neighbouring priorities."""


def clamp_priority(priority: int) -> int:
    return max(0, min(MAX_PRIORITY, priority))


def rank_of(created_at: Millis, priority: int, step: int = RANK_STEP) -> int:
    """One number that orders claims: higher priority first, then the older one. With a smaller
    step work ages: whoever waits that long is worth one more point of priority."""
    return created_at - priority * step
