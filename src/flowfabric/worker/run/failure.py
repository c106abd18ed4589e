"""What an exception of a handler means for its run, as data that can cross processes."""

import traceback

from msgspec import Struct

from flowfabric.core.base.errors import Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.retry import Category
from flowfabric.worker.errors import Fail, Retry

MAX_TRACE = 16_384
MAX_MESSAGE = 4_096


class Raised(Struct, frozen=True):
    """An exception of a handler. `after` is the delay of the retry, if the handler chose one."""

    message: str
    category: Category = Category.TRANSIENT
    trace: str = ""
    after: Millis | None = None
    type: str = ""

    @classmethod
    def by(cls, error: BaseException) -> "Raised":
        if isinstance(error, InProcess):
            return error.raised
        permanent = isinstance(error, Fail | Invalid)
        return cls(
            message=storable(text_of(error)[:MAX_MESSAGE]),
            category=Category.PERMANENT if permanent else Category.TRANSIENT,
            trace=storable("".join(traceback.format_exception(error))[-MAX_TRACE:]),
            after=error.after if isinstance(error, Retry) else None,
            type=type(error).__name__,
        )


class InProcess(Exception):
    """Stands for an error that was raised in another process."""

    def __init__(self, raised: Raised) -> None:
        super().__init__(raised.message)
        self.raised = raised
        if raised.trace:
            self.__cause__ = RemoteTraceback(raised.trace)


class RemoteTraceback(Exception):
    """The traceback of an error in another process, as text: what Python prints as its cause."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def storable(text: str) -> str:
    """The text with replacements for what a store cannot hold."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()


def type_of(error: BaseException) -> str:
    """The name of the error's type, also of one that was raised in another process."""
    return error.raised.type if isinstance(error, InProcess) else type(error).__name__


def text_of(error: BaseException) -> str:
    """The type of the error and what it says."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # its own __str__ fails
        return name
    return f"{name}: {text}" if text else name
