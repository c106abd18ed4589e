"""Arguments and results as JSON, typed at both ends by the function's own annotations.

The payload is an object with one member per parameter, so that any language can write one.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Union

import msgspec

from flowfabric.core.errors import Invalid

_EMPTY = inspect.Parameter.empty


class Undecodable(Exception):
    """A payload or a recorded value no longer fits the code's annotations."""


def encode(value: object) -> bytes:
    """Any value msgspec knows, pydantic models included; TypeError for the rest."""
    return _encoder.encode(value)


def decode(data: bytes, type: Any) -> Any:
    """The value of `type` in JSON; Undecodable says what does not fit, and where."""
    try:
        return _decoder(type).decode(data)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise Undecodable(str(error)) from error


class Signature:
    """A function's parameters: binds a call, encodes it, decodes it again."""

    def __init__(self, function: Callable[..., Any], *, skip_first: bool) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        hints = _hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        parameters = parameters[1:] if skip_first else parameters
        self._signature = inspect.Signature(parameters)
        self._types = {p.name: _type_of(p, hints.get(p.name, Any)) for p in parameters}
        self._defaults = {p.name for p in parameters if p.default is not _EMPTY or _variadic(p)}
        self._kinds = {p.name: p.kind for p in parameters}
        self.returns = hints.get("return", Any)
        self._struct = _arguments_type(self._types, self._defaults)

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(self._types)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises TypeError for a call that does not fit the signature and
        Invalid, naming the parameter, for an argument that cannot be encoded or has the wrong
        type."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None
        try:
            return _encoder.encode(bound)
        except (TypeError, ValueError, OverflowError, RecursionError):
            raise self._unencodable(bound) from None

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The call in a payload. Undecodable says which argument does not fit, and why."""
        try:
            values = _decoder(self._struct).decode(payload or b"{}")
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise Undecodable(f"the arguments do not fit {self.name}: {error}") from error
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, kind in self._kinds.items():
            value = getattr(values, name)
            if value is msgspec.UNSET:
                continue
            _place(name, kind, value, args, kwargs)
        return args, kwargs

    def _unencodable(self, bound: Mapping[str, Any]) -> Invalid:
        for name, value in bound.items():
            try:
                _encoder.encode(value)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                return Invalid(
                    f"argument {name!r} of {self.name} cannot be sent: "
                    f"{type(value).__name__}: {error}"
                )
        return Invalid(f"the arguments of {self.name} cannot be sent")


def _place(name: str, kind: Any, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    match kind:
        case inspect.Parameter.POSITIONAL_ONLY:
            args.append(value)
        case inspect.Parameter.VAR_POSITIONAL:
            # What came before must be positional too, or it would be given twice.
            args[:] = [*args, *kwargs.values(), *value]
            kwargs.clear()
        case inspect.Parameter.VAR_KEYWORD:
            kwargs.update(value)
        case _:
            kwargs[name] = value


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return {}  # annotations that only exist for the type checker: taken as they come


def _variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)


def _type_of(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return list[hint]
    if parameter.kind is parameter.VAR_KEYWORD:
        return dict[str, hint]
    return hint


def _arguments_type(hints: Mapping[str, Any], optional: set[str]) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for name, hint in hints.items():
        if name in optional:
            fields.append((name, _known(Union[hint, msgspec.UnsetType]), msgspec.UNSET))  # noqa: UP007
        else:
            fields.append((name, _known(hint)))
    return msgspec.defstruct("Arguments", fields, kw_only=True)


def _known(hint: Any) -> Any:
    """The annotation if a decoder can be made for it; anything goes otherwise."""
    try:
        msgspec.json.Decoder(hint, dec_hook=_dec_hook)
    except (TypeError, ValueError):
        return Any
    return hint


def _enc_hook(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _dec_hook(type: Any, value: Any) -> Any:
    validate = getattr(type, "model_validate", None)
    if callable(validate):
        return validate(value)
    raise TypeError(f"{type.__name__} cannot be read from JSON")


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


@lru_cache(maxsize=1024)
def _cached_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type, dec_hook=_dec_hook)


def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _cached_decoder(type)
    except TypeError:  # not hashable, or not a type msgspec knows
        return msgspec.json.Decoder(_known(type), dec_hook=_dec_hook)
