"""The faulty network of the tests in its own thread, so that faults may block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from tests.kit.proxy import Proxy


class ProxyThread:
    """A TCP port in front of Postgres, and the faults of its connections."""

    def __init__(self, server_url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._proxy = Proxy(server_url)
        self._listener = self._call(asyncio.start_server(self._proxy.serve, "127.0.0.1", 0))
        self.port: int = self._listener.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Closes every open connection."""
        self._call(_soon(self._proxy.cut))

    def silence(self) -> None:
        """Silences open connections without a reset; new ones work."""
        self._call(_soon(self._proxy.black_hole))

    def refuse(self, refusing: bool) -> None:
        """Closes every open connection and refuses new ones, or accepts them again."""
        self._proxy.refuses = refusing
        if refusing:
            self.cut()

    def close(self) -> None:
        self.refuse(True)
        self._listener.close()
        self._call(self._proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


async def _soon(work: Callable[[], None]) -> None:
    work()
