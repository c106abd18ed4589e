"""Exit codes, and how an error becomes one line on stderr instead of a traceback."""

from enum import IntEnum
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from flowfabric.cli.format import readable
from flowfabric.cli.output import Screen
from flowfabric.core.base.errors import (
    ApprovalOutdated,
    CapabilityMismatch,
    Corruption,
    FlowFabricError,
    ForeignHandle,
    GrantExists,
    Invalid,
    InvalidBlockingReason,
    InvalidHandle,
    InvalidId,
    LeaseRevoked,
    MaxReplays,
    MissingToken,
    NotActive,
    NotAllowed,
    NotFound,
    Overloaded,
    Unauthorized,
    Unavailable,
)

TOKEN_VARIABLE = "FLOWFABRIC_WAITPOINT_TOKEN"  # noqa: S105 - a name, not a token
DEBUG = "flowfabric.debug"
AS_JSON = "flowfabric.json"


class ExitCode(IntEnum):
    """What the exit code says to a script."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4


EPILOG = (
    "Exit codes: 0 success · 1 the run did not succeed, or the command failed · 2 wrong usage · "
    "3 not found · 4 the store is unavailable."
)


class CommandError(Exception):
    """What a command finds wrong itself, with its exit code and a word for programs."""

    def __init__(self, text: str, code: ExitCode = ExitCode.FAILED, word: str = "failed") -> None:
        super().__init__(text)
        self.code = code
        self.word = word


def no_server(error: ModuleNotFoundError) -> CommandError:
    """The error of a command that needs the extra `server`."""
    text = f"the server needs {error.name}: pip install 'flowfabric[server]'"
    return CommandError(text, ExitCode.USAGE, "no_extra")


def usage(text: str) -> CommandError:
    return CommandError(text, ExitCode.USAGE, "usage")


class ErrorReport(NamedTuple):
    """What an error means to the shell, to programs and to people."""

    code: ExitCode
    word: str
    text: str


_BEFORE = {
    CapabilityMismatch: "the worker lacks capabilities: ",
    Corruption: "stored data cannot be read: ",
    GrantExists: "the run is reserved for another worker: ",
    InvalidBlockingReason: "no such reason to block a run: ",
    ForeignHandle: "not a handle of this store: ",
    InvalidHandle: "not a valid handle: ",
    LeaseRevoked: "the lease was revoked: ",
    MaxReplays: "the run cannot be replayed again: ",
    Overloaded: "overloaded: ",
}
"""What people need to read before the detail of an error that is short."""
_AFTER: dict[type[FlowFabricError], str] = {
    ApprovalOutdated: "; `flowfabric waitpoints show RUN` shows what is to be approved",
}
"""What people may do about an error, where its detail is for every way to call."""

UsageError: Any = typer.BadParameter.__base__
"""What typer finds wrong with an argument or an option; its name for it is private."""

EXPECTED = (CommandError, FlowFabricError, TimeoutError)


def report(error: Exception) -> ErrorReport:
    match error:
        case CommandError():
            return ErrorReport(error.code, error.word, str(error))
        case FlowFabricError():
            return ErrorReport(_exit_code(error), error.code, _words(error))
        case _:
            return ErrorReport(ExitCode.FAILED, "timeout", str(error) or "took too long")


def _exit_code(error: FlowFabricError) -> ExitCode:
    match error:
        case MissingToken():
            return ExitCode.USAGE
        case Unauthorized() | NotAllowed():
            return ExitCode.FAILED
        case Invalid():
            return ExitCode.USAGE
        case NotFound():
            return ExitCode.NOT_FOUND
        case Unavailable() | Overloaded():
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.FAILED


def _words(error: FlowFabricError) -> str:
    match error:
        case InvalidId(text=text, what=what):
            noun = what if what == "waitpoint" else "run"
            return f"{text[:80]!r} is not a {noun}'s id, which looks like 01a1e105-7c1b-…"
        case NotFound(entity="execution", key=key):
            return f"no run {key}" if key else "no such run"
        case NotFound(entity="approval", key=key):
            return f"the run has no open approval {str(key)!r}"
        case NotActive(outcome="none", phase=phase):
            return f"no worker has the run: it is {phase}"
        case NotActive(outcome=outcome):
            return f"the run has ended already ({outcome})"
        case MissingToken():
            return f"a token is required: give --token or set {TOKEN_VARIABLE}"
        case _ if error.detail:
            before, after = _BEFORE.get(type(error), ""), _AFTER.get(type(error), "")
            return readable(before + error.detail + after)
        case _:
            return error.code.replace("_", " ")


class Root(TyperGroup):
    """The outermost group: the one place where errors end."""

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            return super().invoke(ctx)
        except EXPECTED as error:
            if ctx.meta.get(DEBUG):
                raise
            found = report(error)
            Screen(bool(ctx.meta.get(AS_JSON))).error(found.word, found.text)
            raise typer.Exit(found.code) from None
        except UsageError as error:
            if not as_json:
                raise
            Screen(as_json).error("usage", error.format_message())
            raise typer.Exit(ExitCode.USAGE) from None
