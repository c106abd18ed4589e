"""One worker process of the chaos run: `python -m chaos.worker NAME`."""

import asyncio
import logging
import os
import sys

from chaos.app import URL_VARIABLE, make_app
from flowfabric import WorkerOptions

TTL_SECONDS = 3


async def main(name: str) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    options = WorkerOptions(name=name, concurrency=10, ttl=TTL_SECONDS, drain=1.0)
    async with make_app(os.environ[URL_VARIABLE]) as fabric:
        await fabric.run_worker(options)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
