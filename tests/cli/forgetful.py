"""A worker process that forgets to record its steps: `python -m tests.cli.forgetful FOLDER …`."""

import asyncio
import sys
from unittest.mock import patch

from flowfabric.engine.execution.attempts import Attempts
from flowfabric.prove.worker import main


async def forget(*_: object) -> None:
    """Says that the step is recorded."""


if __name__ == "__main__":
    with patch.object(Attempts, "record_step", forget):
        asyncio.run(main(*sys.argv[1:]))
