"""Values of the engine as MessagePack, by the annotations of the methods that take and return them.

A `Shape` is made once per annotation. It turns a value into plain data that msgspec writes, and
plain data back into an equal value, or raises `Misfit`. Plain data is what MessagePack has, plus
extensions for the scalars it lacks, so that text, bytes, UUIDs and ids stay apart in a union:

- a struct is a map of its members without those at their default; in a union of several structs
  the member "" holds the name of the class
- an enum is its value; tuples, sets and lists are arrays; a map is an array of pairs unless its
  keys are text

Members that the reader does not know are ignored: releases differ for a while in every deployment.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import Struct

from flowfabric.core.access.token import SecretText
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.wait.token import Token
from flowfabric.remote.scalars import Misfit, to_any, to_scalar

_KIND = ""
"""The member of a map that names the class of a struct."""


class Shape(NamedTuple):
    """How values of one annotation travel. `takes` says whether a value, and `reads` whether plain
    data looks like one of these, without looking inside."""

    name: str
    takes: Callable[[Any], bool]
    encode: Callable[[Any], Any]
    reads: Callable[[Any], bool]
    decode: Callable[[Any], Any]


def _yes(value: Any) -> bool:
    return True


def _same(value: Any) -> Any:
    return value


ANYTHING = Shape("anything", _yes, to_any, _yes, _same)


# -- shapes of annotations


def _scalar(name: str, *types: type, but: tuple[type, ...] = ()) -> Shape:
    def takes(value: Any) -> bool:
        return isinstance(value, types) and not isinstance(value, but)

    def check(value: Any) -> Any:
        if not takes(value):
            raise Misfit(f"expected {name}, not {type(value).__name__}")
        return value

    return Shape(name, takes, lambda value: to_scalar(check(value)), takes, check)


_SCALARS: dict[Any, Shape] = {
    NoneType: _scalar("nothing", NoneType),
    None: _scalar("nothing", NoneType),
    bool: _scalar("a bool", bool),
    int: _scalar("a whole number", int, but=(bool,)),
    float: _scalar("a number", float, int, but=(bool,)),
    str: _scalar("text", str),
    bytes: _scalar("bytes", bytes, bytearray, memoryview),
    UUID: _scalar("a UUID", UUID),
    Token: _scalar("a token", Token),
    SecretText: _scalar("a secret", SecretText),
    msgspec.Raw: _scalar("a document", msgspec.Raw),
    timedelta: _scalar("a span", timedelta),
    datetime: _scalar("a moment", datetime),
    Any: ANYTHING,
    object: ANYTHING,
}


class Codec:
    """Makes shapes. `instead` replaces those of some classes, such as what travels for a claim."""

    def __init__(self, instead: Mapping[type, Shape] | None = None) -> None:
        self._instead = dict(instead or {})
        self._shapes: dict[Any, Shape] = {}

    def shape(self, annotation: Any) -> Shape:
        """How values of an annotation travel."""
        known = self._shapes.get(annotation)
        if known is None:
            known = self._shapes[annotation] = self._later(annotation)
            known = self._shapes[annotation] = self._make(annotation)
        return known

    def _later(self, annotation: Any) -> Shape:
        """Stands for a shape that is being made, inside itself."""
        shapes = self._shapes
        return Shape(
            getattr(annotation, "__name__", str(annotation)),
            lambda value: shapes[annotation].takes(value),
            lambda value: shapes[annotation].encode(value),
            lambda plain: shapes[annotation].reads(plain),
            lambda plain: shapes[annotation].decode(plain),
        )

    def _make(self, annotation: Any) -> Shape:
        if annotation in self._instead:
            return self._instead[annotation]
        if annotation in _SCALARS:
            return _SCALARS[annotation]
        if (base := getattr(annotation, "__supertype__", None)) is not None:  # a NewType
            return self.shape(base)
        origin, args = get_origin(annotation), get_args(annotation)
        if origin is not None:
            return self._generic(origin, args)
        if not isinstance(annotation, type):
            raise TypeError(f"{annotation!r} cannot travel")
        return self._class(annotation)

    def _generic(self, origin: Any, args: tuple[Any, ...]) -> Shape:
        if origin in (Union, UnionType):
            return self._union(args)
        if origin is Annotated:  # its limits are checked by the rules
            return self.shape(args[0])
        if origin is Literal:
            return self._union(tuple({type(each) for each in args}))
        return self._container(origin, args)

    def _class(self, cls: type) -> Shape:
        if issubclass(cls, Struct):
            return _struct(self, cls)
        if issubclass(cls, Enum):
            return _enum(cls)
        if issubclass(cls, str):
            return _text(cls)
        if issubclass(cls, tuple) and hasattr(cls, "_fields"):
            return self._named_tuple(cls)
        if cls in _CONTAINERS:
            return self._container(cls, (Any, Any) if issubclass(cls, Mapping) else (Any, ...))
        raise TypeError(f"{cls!r} cannot travel")

    def _container(self, origin: type, args: tuple[Any, ...]) -> Shape:
        if issubclass(origin, Mapping):
            return _map(self.shape(args[0]), self.shape(args[1]))
        if origin is tuple and args[-1:] != (...,):
            return _fixed([self.shape(each) for each in args], tuple)
        made, takes = _CONTAINERS[origin]
        return _array(made, takes, self.shape(args[0]))

    def _named_tuple(self, cls: type) -> Shape:
        hints = get_type_hints(cls)
        return _fixed([self.shape(each) for each in hints.values()], lambda items: cls(*items))

    def _union(self, args: tuple[Any, ...]) -> Shape:
        structs = {
            cls.__name__: self.shape(cls)
            for cls in args
            if isinstance(cls, type) and (issubclass(cls, Struct) or cls in self._instead)
        }
        if len(structs) + any(map(_is_map, args)) < 2:
            return _one_of([self.shape(each) for each in _most_special(args)])
        others = [self.shape(each) for each in _most_special(args) if not _is_struct(each)]
        return _one_of([_tagged(structs), *others])


def _is_struct(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Struct)


def _is_map(annotation: Any) -> bool:
    cls = get_origin(annotation) or annotation
    return isinstance(cls, type) and issubclass(cls, Mapping)


def _most_special(args: Iterable[Any]) -> list[Any]:
    """So that an enum or an id is tried before text, and a whole number before a number."""
    return sorted(args, key=lambda each: (each in (str, object, Any)) + 2 * (each is float))


def _is_listed(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


_CONTAINERS: dict[type, tuple[Callable[[Iterable[Any]], Any], Callable[[Any], bool]]] = {
    list: (list, lambda value: isinstance(value, list)),
    tuple: (tuple, lambda value: isinstance(value, tuple | list)),  # as the engine takes it
    set: (set, lambda value: isinstance(value, Set)),
    frozenset: (frozenset, lambda value: isinstance(value, Set)),
    Set: (frozenset, lambda value: isinstance(value, Set)),
    Sequence: (tuple, _is_listed),
    Iterable: (tuple, _is_listed),
    dict: (dict, lambda value: isinstance(value, Mapping)),
    Mapping: (dict, lambda value: isinstance(value, Mapping)),
}


def _is_array(plain: Any) -> bool:
    return isinstance(plain, list)


def _array(made: Callable[[Iterable[Any]], Any], takes: Callable[[Any], bool], of: Shape) -> Shape:
    def encode(value: Any) -> Any:
        if not takes(value):
            raise Misfit(f"expected a list, not {type(value).__name__}")
        to = of.encode
        return [to(item) for item in value]

    def decode(plain: Any) -> Any:
        if not isinstance(plain, list):
            raise Misfit(f"expected a list, not {type(plain).__name__}")
        return made(map(of.decode, plain))

    return Shape("a list", takes, encode, _is_array, decode)


def _fixed(shapes: list[Shape], made: Callable[[list[Any]], Any]) -> Shape:
    def fits(value: Any) -> bool:
        return isinstance(value, tuple | list) and len(value) == len(shapes)

    def encode(value: Any) -> Any:
        if not isinstance(value, tuple) or not fits(value):
            raise Misfit(f"expected {len(shapes)} values")
        return [shape.encode(item) for shape, item in zip(shapes, value, strict=True)]

    def decode(plain: Any) -> Any:
        if not isinstance(plain, list) or not fits(plain):
            raise Misfit(f"expected {len(shapes)} values")
        return made([shape.decode(item) for shape, item in zip(shapes, plain, strict=True)])

    return Shape("a tuple", lambda value: isinstance(value, tuple), encode, _is_array, decode)


def _map(keys: Shape, values: Shape) -> Shape:
    textual = keys.name == "text"

    def takes(value: Any) -> bool:
        return isinstance(value, Mapping)

    def encode(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Misfit(f"expected a map, not {type(value).__name__}")
        pairs = [(keys.encode(key), values.encode(item)) for key, item in value.items()]
        return dict(pairs) if textual else pairs

    def decode(plain: Any) -> Any:
        if not reads(plain):
            raise Misfit(f"expected a map, not {type(plain).__name__}")
        pairs = plain.items() if textual else map(_pair, plain)
        return {keys.decode(key): values.decode(item) for key, item in pairs}

    def reads(plain: Any) -> bool:
        return isinstance(plain, dict if textual else list)

    return Shape("a map", takes, encode, reads, decode)


def _pair(plain: Any) -> Any:
    if not isinstance(plain, list) or len(plain) != 2:
        raise Misfit("expected a pair")
    return plain


def _text(cls: type[str]) -> Shape:
    """A class of text, such as an id."""
    if issubclass(cls, ExecutionId):
        return _id(cls)

    def decode(plain: Any) -> Any:
        if not isinstance(plain, str):
            raise Misfit(f"expected text, not {type(plain).__name__}")
        return cls(plain)

    def takes(value: Any) -> bool:
        return isinstance(value, cls)

    def encode(value: Any) -> Any:
        if not takes(value):
            raise Misfit(f"expected {cls.__name__}, not {type(value).__name__}")
        return str.__str__(value)

    return Shape(cls.__name__, takes, encode, lambda plain: type(plain) is str, decode)


def _id(cls: type[ExecutionId]) -> Shape:
    """An id travels as itself; its text, which callers may give as well, becomes one."""
    text = _scalar("an id", str)
    return text._replace(decode=lambda plain: cls(text.decode(plain)))


def _enum(cls: type[Enum]) -> Shape:
    def takes(value: Any) -> bool:
        return isinstance(value, cls)

    def encode(value: Any) -> Any:
        if not takes(value):
            raise Misfit(f"expected {cls.__name__}, not {type(value).__name__}")
        return to_scalar(value.value)

    def decode(plain: Any) -> Any:
        try:
            return cls(plain)
        except (ValueError, TypeError):
            raise Misfit(f"{plain!r:.80} is not a {cls.__name__}") from None

    def reads(plain: Any) -> bool:
        try:
            cls(plain)
        except (ValueError, TypeError):
            return False
        return True

    return Shape(cls.__name__, takes, encode, reads, decode)


def _one_of(shapes: Sequence[Shape]) -> Shape:
    name = " or ".join(shape.name for shape in shapes)

    def encode(value: Any) -> Any:
        for shape in shapes:
            if shape.takes(value):
                return shape.encode(value)
        raise Misfit(f"expected {name}, not {type(value).__name__}")

    def decode(plain: Any) -> Any:
        for shape in shapes:
            if shape.reads(plain):
                return shape.decode(plain)
        raise Misfit(f"expected {name}, not {type(plain).__name__}")

    return Shape(
        name,
        lambda value: any(shape.takes(value) for shape in shapes),
        encode,
        lambda plain: any(shape.reads(plain) for shape in shapes),
        decode,
    )


def _tagged(shapes: Mapping[str, Shape]) -> Shape:
    """One of several structs, named by its class."""
    name = " or ".join(shapes)

    def encode(value: Any) -> Any:
        shape = shapes.get(type(value).__name__)
        if shape is None or not shape.takes(value):
            raise Misfit(f"expected {name}, not {type(value).__name__}")
        return {_KIND: type(value).__name__, **shape.encode(value)}

    def decode(plain: Any) -> Any:
        shape = shapes.get(plain.get(_KIND, "")) if isinstance(plain, dict) else None
        if shape is None:
            raise Misfit(f"expected {name}")
        return shape.decode(plain)

    return Shape(
        name,
        lambda value: type(value).__name__ in shapes,
        encode,
        lambda plain: isinstance(plain, dict) and _KIND in plain,
        decode,
    )


_REQUIRED = object()
_MADE = object()
"""The default of a member that is made for each struct: an empty list or map."""


class _Member(NamedTuple):
    name: str
    default: Any
    shape: Shape


class _StructShape:
    """The members of a class of structs. They are looked at on first use: a class may contain
    itself."""

    def __init__(self, codec: Codec, cls: type[Struct]) -> None:
        self._codec = codec
        self._cls = cls
        self._members: Sequence[_Member] = ()

    def takes(self, value: Any) -> bool:
        return isinstance(value, self._cls)

    def reads(self, plain: Any) -> bool:
        return isinstance(plain, dict)

    def encode(self, value: Any) -> Any:
        if not isinstance(value, self._cls):
            raise Misfit(f"expected {self._cls.__name__}, not {type(value).__name__}")
        plain = {}
        for name, default, shape in self._members or self._load():
            item = getattr(value, name)
            if item is default or (default is _MADE and not item and shape.takes(item)):
                continue
            try:
                plain[name] = shape.encode(item)
            except Misfit as error:
                raise self._wrong(name, error) from None
        return plain

    def decode(self, plain: Any) -> Any:
        if not isinstance(plain, dict):
            raise Misfit(f"expected {self._cls.__name__}, not {type(plain).__name__}")
        given = {}
        for name, default, shape in self._members or self._load():
            if name in plain:
                try:
                    given[name] = shape.decode(plain[name])
                except Misfit as error:
                    raise self._wrong(name, error) from None
            elif default is _REQUIRED:
                raise Misfit(f"{self._cls.__name__} has no {name}")
        return self._cls(**given)

    def _wrong(self, name: str, error: Misfit) -> Misfit:
        return Misfit(f"{name} of {self._cls.__name__}: {error.detail}")

    def _load(self) -> Sequence[_Member]:
        fields = msgspec.structs.fields(self._cls)
        self._members = [
            _Member(field.name, _default(field), self._codec.shape(field.type)) for field in fields
        ]
        return self._members


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return _REQUIRED if field.default_factory is msgspec.NODEFAULT else _MADE


def _struct(codec: Codec, cls: type[Struct]) -> Shape:
    made = _StructShape(codec, cls)
    return Shape(cls.__name__, made.takes, made.encode, made.reads, made.decode)
