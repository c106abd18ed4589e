"""Errors of the engine on their way through a server: the same class, text and members arrive."""

from collections.abc import Iterator
from typing import Any

from flowfabric.core.base.errors import FlowFabricError
from flowfabric.remote.scalars import Misfit, to_any

_TIMEOUT = "TimeoutError"


def encode_error(error: FlowFabricError | TimeoutError) -> list[Any]:
    """The names of its classes, the special ones first, so that an older release knows at least the
    family; its text; its members."""
    if isinstance(error, TimeoutError):
        return [[_TIMEOUT], str(error), {}]
    names = [cls.__name__ for cls in type(error).__mro__ if issubclass(cls, FlowFabricError)]
    members = {name: value for name, value in vars(error).items() if name != "detail"}
    return [names, error.detail, {name: _member(value) for name, value in members.items()}]


def _member(value: object) -> Any:
    try:
        return to_any(value)
    except Misfit:
        return str(value)


def decode_error(plain: Any) -> FlowFabricError | TimeoutError:
    """The error that `encode_error` has written."""
    match plain:
        case [[*names], str(detail), dict(members)]:
            if names == [_TIMEOUT]:
                return TimeoutError(detail) if detail else TimeoutError()
            known = _classes()
            cls = next((known[name] for name in names if name in known), FlowFabricError)
            return _made(cls, detail, members)
        case _:
            raise Misfit("an error cannot be read")


def _made(cls: type[FlowFabricError], detail: str, members: dict[str, Any]) -> FlowFabricError:
    """An error without its constructor, which may want other arguments in another release."""
    error = cls.__new__(cls, detail)
    FlowFabricError.__init__(error, detail)
    error.__dict__.update(members)
    return error


def _classes() -> dict[str, type[FlowFabricError]]:
    if not _known:
        _known.update((cls.__name__, cls) for cls in _tree(FlowFabricError))
    return _known


_known: dict[str, type[FlowFabricError]] = {}


def _tree(cls: type[FlowFabricError]) -> Iterator[type[FlowFabricError]]:
    yield cls
    for each in cls.__subclasses__():
        if each.__module__ == FlowFabricError.__module__:
            yield from _tree(each)
