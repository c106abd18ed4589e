"""What an exception of a handler means for its run, as data that can cross processes."""

import asyncio
import traceback
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

import flowfabric
from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.core.base.time import Millis
from flowfabric.core.execution.retry import Category
from flowfabric.worker.errors import Cancelled, Fail, Retry, Unwind

MAX_TRACE = 16_384
MAX_MESSAGE = 4_096
MAX_CHAIN = 10
"""So many errors are named in the message of a failure."""

_STEP = "_flowfabric_step"
_OWN_CODE = str(Path(flowfabric.__file__).parent)


class Raised(Struct, frozen=True):
    """An exception of a handler. `after` is the delay of the retry, if the handler chose one."""

    message: str
    category: Category = Category.HANDLER_ERROR
    trace: str = ""
    after: Millis | None = None
    type: str = ""
    step: str | None = None

    @classmethod
    def by(cls, error: BaseException) -> "Raised":
        if isinstance(error, InProcess):
            return error.raised
        category = _category(error)
        return cls(
            message=storable(_message(error, category)[:MAX_MESSAGE]),
            category=category,
            trace=storable("".join(traceback.format_exception(error))[-MAX_TRACE:]),
            after=error.after if isinstance(error, Retry) else None,
            type=type_of(error),
            step=step_of(error),
        )


def _category(error: BaseException) -> Category:
    """What an exception says about retries: the handler's own decision, if it made one."""
    match error:
        case Fail() | Invalid():
            return Category.PERMANENT
        case Retry():
            return Category.TRANSIENT
        case Exception() if not isinstance(error, Panic):
            return Category.HANDLER_ERROR
        case _:
            return Category.HANDLER_PANIC


def _message(error: BaseException, category: Category) -> str:
    """What the error says, with the errors it was raised from: `Refused: TimeoutError: 3 s`. A
    decision of the handler (`Fail`, `Retry`) says it alone."""
    match category:
        case Category.HANDLER_PANIC:
            return f"handler panicked: {text_of(error)}"
        case Category.HANDLER_ERROR:
            return ": ".join(map(text_of, _chain(error)))
        case _:
            return text_of(error)


def _chain(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from, and so on."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and len(found) < MAX_CHAIN:
        if isinstance(cause, RemoteTraceback) or any(cause is each for each in found):
            break
        found.append(cause)
        cause = cause.__cause__
    return found


class Panic(RuntimeError):
    """Stands for something raised by user code that is no `Exception`, such as `SystemExit`."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(f"the function raised {text_of(raised)}")
        self.raised = raised


def contained(error: BaseException) -> BaseException:
    """The error as it may leave user code, or another that is raised from it. In a future or a task
    of its own, `SystemExit` would end the event loop and every other run, and `GeneratorExit` would
    close the coroutine that waits. A cancellation, or the end of a handler that waits, is left as
    it is."""
    if isinstance(error, asyncio.CancelledError | Unwind):
        return error
    if not isinstance(error, Exception):
        return Panic(error)
    if isinstance(error, StopIteration):  # no future accepts it
        return RuntimeError(f"the function raised {text_of(error)}")
    return error


def contained_in_step(error: BaseException) -> BaseException:
    """The same for the function of a step. A step that raises `CancelledError` although it was not
    cancelled has failed; its handler goes on."""
    of_asyncio = isinstance(error, asyncio.CancelledError) and not isinstance(error, Cancelled)
    if of_asyncio and not _is_cancelled():
        return RuntimeError("the step cancelled itself")
    return contained(error)


def _is_cancelled() -> bool:
    """Whether the current task was cancelled. No caller can cancel a thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return False
    return task is not None and task.cancelling() > 0


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


def mark_step(error: Exception, step: str) -> None:
    """Marks an error with the name of the step that raised it."""
    with suppress(AttributeError, TypeError):  # an error without a dictionary
        error.__dict__.setdefault(_STEP, step)


def step_of(error: BaseException) -> str | None:
    """The step that raised an error, also if the handler raised another one from it."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if (step := getattr(found, "__dict__", {}).get(_STEP)) is not None:
            return str(step)
        found = found.__cause__ or found.__context__
    return None


def begin_in_user_code(error: BaseException) -> None:
    """Cuts the calls of the engine off the beginning of a traceback: people look for their own
    code in it. The traceback of an error of the engine itself stays whole."""
    frame = error.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
            error.__traceback__ = frame
            return
        frame = frame.tb_next


def storable(text: str) -> str:
    """The text with replacements for what a store cannot hold."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()


def type_of(error: BaseException) -> str:
    """The name of the error's type, also of one that was raised in another process."""
    if isinstance(error, InProcess):
        return error.raised.type
    return type(error.raised if isinstance(error, Panic) else error).__name__


def text_of(error: BaseException) -> str:
    """The type of the error and what it says, without a code that only says the type again."""
    if isinstance(error, InProcess):
        return error.raised.message
    error = error.raised if isinstance(error, Panic) else error
    name = type(error).__name__
    try:
        text = str(error)
        if isinstance(error, FlowFabricError) and error.code.replace("_", "") == name.lower():
            text = text.removeprefix(error.code).removeprefix(": ")
    except Exception:  # its own __str__ fails
        return name
    return f"{name}: {text}" if text else name
