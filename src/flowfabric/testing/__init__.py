"""The testing kit: your Fabric with an in-memory store and a clock that only the test moves.

async with testing.harness(app.fabric) as harness:
    assert await harness.run(app.publish, "hello") == "live"
"""

from flowfabric.store.clock import ManualClock
from flowfabric.testing.kit import Harness, harness
from flowfabric.testing.stuck import Stuck

__all__ = ["Harness", "ManualClock", "Stuck", "harness"]
