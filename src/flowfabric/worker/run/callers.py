"""Which of the tasks and threads that belong to a handler a call comes from."""

import asyncio
import threading


class Callers:
    """Tells the tasks of the event loop in which it is made from each other, and from threads."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def current(self) -> object:
        """The task this is called in, or the thread."""
        if threading.get_ident() == self._thread:
            # Every step comes here; to ask which loop runs would be a call of the system.
            return asyncio.current_task(self.loop)
        try:
            return asyncio.current_task()
        except RuntimeError:  # a thread without an event loop
            return threading.get_ident()
