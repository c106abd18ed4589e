"""What tests of an application need: its own Fabric on a store in memory and on a clock that moves
only when told, with runs driven by hand.

    async with testing.bench(app.fabric) as bench:
        assert await bench.run(app.publish, "hello") == "live"
"""

from flowfabric.store.clock import ManualClock
from flowfabric.testing.kit import Bench, bench
from flowfabric.testing.stuck import Stuck

__all__ = ["Bench", "ManualClock", "Stuck", "bench"]
