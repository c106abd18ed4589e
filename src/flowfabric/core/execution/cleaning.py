"""The clean-up of a run that was cancelled, or that failed with work to undo."""

from flowfabric.core.base.document import Document
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.outcome import Outcome

CLEANUP_TIME = Millis(30_000)
"""How long a clean-up may take unless the task says otherwise."""


class Cleanup(Document, frozen=True, kw_only=True, omit_defaults=True):
    """A clean-up that is going on: the run ends with `outcome` when its handler has cleaned up, at
    `until` at the latest. It began at `since`, while the lease with this `epoch` was the last."""

    since: Millis
    until: Millis
    epoch: int
    outcome: Outcome = Outcome.CANCELLED
