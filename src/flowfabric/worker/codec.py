"""Arguments and results as JSON, typed at both ends by the function's own annotations.

The payload is an object with one member per parameter, so that any language can write one.
"""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from inspect import Parameter
from typing import Any, Union

import msgspec

from flowfabric.core.base.errors import FlowFabricError, Invalid, InvalidCall
from flowfabric.core.base.json import encode_strictly
from flowfabric.worker import models

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Undecodable(FlowFabricError):
    """A payload or a recorded value no longer fits the code's annotations."""

    code = "undecodable"

    def __str__(self) -> str:
        return self.detail


def encode(value: object) -> bytes:
    """The JSON of any value that msgspec knows, or of a pydantic model. Raises Invalid with the
    reason if there is none."""
    try:
        return encode_strictly(value, _encoder, _builtins)
    except Exception as error:  # a model's own serialisers may raise anything
        raise Invalid(f"{type(value).__name__}: {_message(error)}") from None


def decode(data: bytes, type: Any, what: str = "") -> Any:
    """A value of `type` from JSON. Raises Undecodable, which says what does not fit and where;
    `what` names the value."""
    try:
        return _decoder(type).decode(data)
    except Exception as error:  # a model's own validators may raise anything
        named = f"{what} does not fit {getattr(type, '__name__', type)}: " if what else ""
        says_more = not isinstance(error, msgspec.ValidationError)  # which says nothing more
        raise Undecodable(named + _message(error)) from (error if says_more else error.__cause__)


def plain(value: object) -> Any:
    """A value as lists, dicts, strings and numbers. Sets are sorted, so that the result is the same
    in every process."""
    try:
        return msgspec.to_builtins(value, enc_hook=_enc_hook, order="sorted")
    except Exception as error:  # a model's own serialisers may raise anything
        raise Invalid(f"{type(value).__name__}: {_message(error)}") from None


def _builtins(value: object) -> Any:
    return msgspec.to_builtins(value, enc_hook=_enc_hook)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function, without those that only the type checker can resolve."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        return dict(_single_hints(function))


class Signature:
    """A function's parameters: binds a call, encodes it, decodes it again."""

    def __init__(self, function: Callable[..., Any], *, skip_first: bool) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        self._function = function
        parameters = list(inspect.signature(function).parameters.values())
        self._parameters = parameters[1:] if skip_first else parameters
        self._signature = inspect.Signature(self._parameters)
        kinds = {parameter.kind for parameter in self._parameters}
        self.takes_any_keyword = Parameter.VAR_KEYWORD in kinds
        self._takes_more = Parameter.VAR_POSITIONAL in kinds
        self._names = [parameter.name for parameter in self._parameters]
        self._by_place = kinds <= set(_POSITIONAL)
        self._all_by_name = kinds <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        self._decoder: msgspec.json.Decoder[Any] | None = None
        hints = hints_of(function)
        if all(name in hints for name in _annotations_of(function)):
            _ = self._struct  # refuses parameters that cannot be read, where they are declared

    @cached_property
    def returns(self) -> Any:
        return hints_of(self._function).get("return", Any)

    @cached_property
    def _struct(self) -> type[msgspec.Struct]:
        """Made when it is first used if an annotation names a class that is defined further below
        in its module."""
        hints = hints_of(self._function)
        fields = [self._field(parameter, hints) for parameter in self._parameters]
        return msgspec.defstruct("Arguments", fields, kw_only=True)

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset(self._signature.parameters)

    @property
    def defaults(self) -> dict[str, Any]:
        """The optional parameters with their defaults."""
        given = self._signature.parameters.items()
        return {n: each.default for n, each in given if each.default is not Parameter.empty}

    def json_schema(self) -> dict[str, Any]:
        """The JSON schema of a payload, whole: the models it refers to are in its `$defs`."""
        return models.json_schema(self._struct)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises InvalidCall for a call that does not fit the signature and
        Invalid, naming the parameter, for an argument that cannot be encoded or that the
        function's annotation does not accept."""
        payload = self.encode_loosely(self.bind(args, kwargs))
        try:
            self._read(payload)
        except Exception as error:
            raise Invalid(f"{self.name} does not accept this: {_message(error)}") from None
        return payload

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the names of the parameters; InvalidCall if they do not
        fit."""
        if self._by_place and not kwargs and len(args) == len(self._names):
            return dict(zip(self._names, args, strict=True))
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidCall(f"{self.name}: {error}") from None

    def place(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with as many positional arguments as the function can take."""
        bound = self._signature.bind(*args, **kwargs)
        return bound.args, bound.kwargs

    def encode_loosely(self, bound: Mapping[str, Any]) -> bytes:
        """The payload of bound arguments, whether or not they fit the annotations."""
        try:
            return encode_strictly(bound, _encoder, _builtins)
        except Exception:
            raise self._unencodable(bound) from None

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The call in a payload. Undecodable says which argument does not fit, and why."""
        try:
            values = self._read(payload or b"{}")
        except Exception as error:
            raise Undecodable(f"the arguments do not fit {self.name}: {_message(error)}") from error
        if self._all_by_name:
            return [], {
                name: value
                for name in self._names
                if (value := getattr(values, name)) is not msgspec.UNSET
            }
        return self._placed(values)

    def _read(self, payload: bytes) -> Any:
        if self._decoder is None:
            self._decoder = _decoder(self._struct)
        return self._decoder.decode(payload)

    def _placed(self, values: msgspec.Struct) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(values, parameter.name)
            if value is msgspec.UNSET:
                if not self._must_fill(parameter):
                    continue
                value = parameter.default
            _place(parameter, value, args, kwargs)
        return args, kwargs

    def _must_fill(self, parameter: Parameter) -> bool:
        """Whether leaving a parameter out would move later arguments into its place."""
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            return True
        return parameter.kind in _POSITIONAL and self._takes_more

    def _field(self, parameter: Parameter, hints: Mapping[str, Any]) -> tuple[Any, ...]:
        hint = _readable(_type_of(parameter, hints.get(parameter.name, Any)))
        try:
            msgspec.json.Decoder(hint, dec_hook=_dec_hook)
        except Exception as error:
            raise Invalid(f"parameter {parameter.name!r} of {self.name}: {error}") from None
        if parameter.default is Parameter.empty and not _variadic(parameter):
            return (parameter.name, hint)
        return (parameter.name, Union[hint, msgspec.UnsetType], msgspec.UNSET)  # noqa: UP007

    def _unencodable(self, bound: Mapping[str, Any]) -> Invalid:
        for name, value in bound.items():
            try:
                encode(value)
            except Invalid as error:
                return Invalid(f"argument {name!r} of {self.name} cannot be sent: {error.detail}")
        return Invalid(f"the arguments of {self.name} cannot be sent")


def _place(parameter: Parameter, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    match parameter.kind:
        case Parameter.POSITIONAL_ONLY:
            args.append(value)
        case Parameter.VAR_POSITIONAL:
            # What came before must be positional too, or it would be given twice.
            args[:] = [*args, *kwargs.values(), *value]
            kwargs.clear()
        case Parameter.VAR_KEYWORD:
            kwargs.update(value)
        case _:
            kwargs[parameter.name] = value


def _annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as they are written."""
    found: dict[str, Any] = getattr(inspect.unwrap(function), "__annotations__", {})
    return found


def _single_hints(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Each annotation on its own, so that one that cannot be resolved does not hide the others."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    for name, annotation in _annotations_of(function).items():

        def probe() -> None: ...

        probe.__annotations__ = {name: annotation}
        try:
            yield name, typing.get_type_hints(probe, names, include_extras=True)[name]
        except Exception:  # noqa: S112 - it has no meaning at run time
            continue


def _variadic(parameter: Parameter) -> bool:
    return parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _type_of(parameter: Parameter, hint: Any) -> Any:
    match parameter.kind:
        case Parameter.VAR_POSITIONAL:
            return list[hint]
        case Parameter.VAR_KEYWORD:
            return dict[str, hint]
        case _:
            return hint


def _message(error: Exception) -> str:
    return str(error) or type(error).__name__


def _enc_hook(value: Any) -> Any:
    if hasattr(value, "__pydantic_serializer__"):
        return models.dump(value)
    if isinstance(value, str):  # such as the id of a run
        return str.__str__(value)
    hint = "; is an `await` missing?" if inspect.isawaitable(value) else ""
    raise TypeError(f"{type(value).__name__} has no JSON form{hint}")


def _dec_hook(type: Any, value: Any) -> Any:
    try:
        if hasattr(type, "__pydantic_validator__"):
            return models.load(type, value)
        if (adapter := getattr(type, models.ADAPTER, None)) is not None:
            return models.load_with(adapter, value)
    except Exception as error:
        if problems := models.problems_of(error):
            raise ValueError(problems) from error
        raise
    if type is object:
        return value
    raise TypeError(f"{getattr(type, '__name__', type)} cannot be read from JSON")


def _readable(hint: Any) -> Any:
    """The annotation, or a stand-in that pydantic reads if msgspec cannot, such as a union of
    models."""
    try:
        msgspec.json.Decoder(hint, dec_hook=_dec_hook)
    except Exception:
        return models.adapted(hint)
    return hint


_encoder = msgspec.json.Encoder(enc_hook=_enc_hook)


@lru_cache(maxsize=1024)
def _cached_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    return _new_decoder(type)


def _new_decoder(type: Any) -> msgspec.json.Decoder[Any]:
    """A decoder for the annotation, or for any value if the annotation cannot be decoded."""
    try:
        return msgspec.json.Decoder(_readable(type), dec_hook=_dec_hook)
    except Exception:
        return msgspec.json.Decoder(dec_hook=_dec_hook)


def _decoder(type: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _cached_decoder(type)
    except TypeError:  # not hashable
        return _new_decoder(type)
