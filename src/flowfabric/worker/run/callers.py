"""Which of the tasks and threads that belong to a handler a call comes from."""

import asyncio
import threading


def current_caller() -> object:
    """The task this is called in, or the thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return threading.get_ident()
