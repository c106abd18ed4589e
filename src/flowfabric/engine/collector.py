"""The garbage collector of a process that works: it runs a worker, claims by itself, or cancels
many runs at once.

Python looks for cycles whenever 700 objects more exist than at the last look (2,000 in newer
releases). A worker with a hundred runs at once holds up to 10,000 that all live, so that the looks
find nothing and take a sixth to a quarter of its CPU. A run leaves no cycles behind. A cancel
of a thousand members holds as many; every hundredth look is at the whole memory of the application,
and takes longer than the cancel.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 20_000
USUAL = 2_000
"""A process with a higher threshold than Python's own, or with the collector off, has chosen it."""

_holders = 0
_before = 0


@contextmanager
def rare_collections() -> Iterator[None]:
    """While the process works, the collector looks after `OBJECTS` new ones. Afterwards the
    threshold is as it was, unless the application has set another."""
    global _holders, _before  # the collector is one for the whole process
    threshold, *others = gc.get_threshold()
    if not _holders and 0 < threshold <= USUAL:
        _before = threshold
        gc.set_threshold(OBJECTS, *others)
    _holders += 1
    try:
        yield
    finally:
        _holders -= 1
        threshold, *others = gc.get_threshold()
        if not _holders and _before:
            if threshold == OBJECTS:
                gc.set_threshold(_before, *others)
            _before = 0
