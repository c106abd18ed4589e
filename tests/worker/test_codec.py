"""Arguments and results: what goes in at one end comes out at the other, or is refused by name."""

import enum
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from flowfabric.core.base.errors import FlowFabricError, Invalid
from flowfabric.worker.codec import Signature, Undecodable, decode, encode, hints_of

if TYPE_CHECKING:
    from somewhere_else import Unknown  # type: ignore[import-not-found]


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Line:
    points: list[Point]
    label: str | None = None
    seen: dict[str, datetime] = field(default_factory=dict)


class Order(msgspec.Struct):
    id: int
    lines: tuple[Line, ...] = ()


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None


class Grumpy(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def refuse(cls, value: str) -> str:
        raise KeyError(value)


def takes_later(value: "Later") -> "Later":
    return value


TAKES_LATER = Signature(takes_later, skip_first=False)


@dataclass
class Later:
    x: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    left: int
    right: str


class Setting(TypedDict):
    name: str
    on: bool


class Opaque:
    """Nothing that JSON can say."""


def signature(function: Callable[..., Any]) -> Signature:
    return Signature(function, skip_first=False)


def roundtrip(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What the function returns when it is called from the payload of this call."""
    own = signature(function)
    given, named = own.decode(own.encode(args, kwargs))
    return function(*given, **named)


# -- values


VALUES: list[tuple[Any, Any]] = [
    (int, 7),
    (int, 2**63 - 1),
    (float, 1.5),
    (bool, True),
    (str, "naïve ☕ \x01"),
    (None, None),
    (bytes, b"\x00\xff"),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=5)),
    (datetime, datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)),
    (datetime, datetime(2024, 2, 29, 12, 30)),  # noqa: DTZ001 - a naive one stays naive
    (date, date(2024, 2, 29)),
    (time, time(12, 30)),
    (timedelta, timedelta(days=2, microseconds=7)),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (Point, Point(1, 2)),
    (Line, Line([Point(1), Point(2)], "x", {"a": datetime(2024, 1, 1, tzinfo=UTC)})),
    (Order, Order(3, (Line([]),))),
    (Circle | Square, Square(2.0)),
    (Person, Person(name="Ada", born=date(1815, 12, 10))),
    (list[Person], [Person(name="Ada"), Person(name="Alan")]),
    (Person | None, None),
    (Pair, Pair(1, "a")),
    (Setting, {"name": "x", "on": True}),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (dict[str, list[Point]], {"a": [Point(1)]}),
    (dict[int, str], {1: "a"}),
    (dict[UUID, int], {UUID(int=5): 1}),
    (int | None, None),
    (int | str, "7"),
    (int | str, 7),
    (Point | None, Point(1)),
    (int | Point, Point(1)),
    (Literal["a", "b"], "b"),
    (Annotated[int, msgspec.Meta(ge=1)], 1),
    (Any, {"anything": [1, None, "x"]}),
    (object, [1]),
]


@pytest.mark.parametrize(("type", "value"), VALUES, ids=lambda item: str(item)[:40])
def test_a_value_comes_out_as_it_went_in(type: Any, value: Any) -> None:
    assert decode(encode(value), type) == value

    def function(argument):  # type: ignore[no-untyped-def]
        return argument

    function.__annotations__ = {"argument": type}
    assert roundtrip(function, value) == value


def test_an_argument_without_annotation_is_plain_json() -> None:
    def function(thing, more=None):  # type: ignore[no-untyped-def]
        return thing, more

    assert roundtrip(function, {"a": Point(1)}, more=Colour.RED) == ({"a": {"x": 1, "y": 0}}, "red")


def test_an_annotation_may_name_a_class_that_is_defined_further_below() -> None:
    assert TAKES_LATER.returns is Later
    payload = TAKES_LATER.encode((Later(7),), {})
    assert TAKES_LATER.decode(payload) == ([], {"value": Later(7)})


def test_annotations_that_only_the_type_checker_sees_do_not_hide_the_others() -> None:
    def function(ctx: "Unknown", point: "Point", day: "date | None" = None) -> "Point":
        return point

    own = Signature(function, skip_first=True)
    args, kwargs = own.decode(own.encode((Point(1),), {"day": date(2024, 1, 1)}))
    assert (args, kwargs) == ([], {"point": Point(1), "day": date(2024, 1, 1)})
    assert own.returns is Point
    assert "ctx" not in hints_of(function)


# -- calls


def test_defaults_are_those_of_the_code_that_runs() -> None:
    def old(a: int, b: int = 2) -> Any:
        return a, b

    def new(a: int, b: int = 5) -> Any:
        return a, b

    args, kwargs = signature(new).decode(signature(old).encode((1,), {}))
    assert new(*args, **kwargs) == (1, 5)


def test_a_default_that_json_cannot_say_is_never_sent() -> None:
    def function(a: int, sink: Any = print, other: Opaque = Opaque()) -> Any:  # noqa: B008
        return a, sink

    assert roundtrip(function, 1) == (1, print)


def test_more_positional_and_keyword_arguments() -> None:
    def function(a: int, b: int = 2, *rest: Point, key: str = "k", **more: Decimal) -> Any:
        return a, b, rest, key, more

    assert roundtrip(function, 1) == (1, 2, (), "k", {})
    assert roundtrip(function, 1, 3, Point(4), Point(5)) == (1, 3, (Point(4), Point(5)), "k", {})
    assert roundtrip(function, b=7, a=1, key="x", c=Decimal("0.1")) == (
        1,
        7,
        (),
        "x",
        {"c": Decimal("0.1")},
    )


def test_a_payload_that_leaves_something_out_moves_nothing_into_its_place() -> None:
    def variadic(a: int, b: int = 2, *rest: int) -> Any:
        return a, b, rest

    args, kwargs = signature(variadic).decode(b'{"a": 1, "rest": [8, 9]}')
    assert variadic(*args, **kwargs) == (1, 2, (8, 9))

    def positional(a: int = 1, b: int = 2, /) -> Any:
        return a, b

    args, kwargs = signature(positional).decode(b'{"b": 7}')
    assert positional(*args, **kwargs) == (1, 7)


def test_positional_only_and_keyword_only() -> None:
    def function(a: int, /, b: int, *, c: Point) -> Any:
        return a, b, c

    assert roundtrip(function, 1, 2, c=Point(3)) == (1, 2, Point(3))
    assert roundtrip(function, 1, b=2, c=Point(3)) == (1, 2, Point(3))
    with pytest.raises(TypeError, match=r"function: .*'a'"):
        signature(function).encode((), {"a": 1, "b": 2, "c": Point(3)})


def test_odd_names_are_names_like_any_other() -> None:
    def function(self: int, cls: int, args: int, _x: int, type: int) -> Any:
        return self, cls, args, _x, type

    assert roundtrip(function, 1, 2, 3, 4, 5) == (1, 2, 3, 4, 5)


def test_a_payload_is_one_object_with_a_member_per_parameter() -> None:
    def function(a: int, *rest: int, b: int = 0, **more: int) -> None: ...

    payload = signature(function).encode((1, 2, 3), {"b": 4, "c": 5})
    assert msgspec.json.decode(payload) == {"a": 1, "rest": [2, 3], "b": 4, "more": {"c": 5}}


def test_an_empty_payload_is_a_call_without_arguments() -> None:
    def function(a: int = 4) -> int:
        return a

    args, kwargs = signature(function).decode(b"")
    assert function(*args, **kwargs) == 4


def test_unknown_members_are_left_alone() -> None:
    """An older worker can run what a newer client submits."""

    def function(a: int) -> int:
        return a

    assert signature(function).decode(b'{"a": 1, "new": 2}') == ([], {"a": 1})


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "missing a required argument: 'a'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"c": 1}, "unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
)
def test_a_wrong_call_is_a_type_error_that_names_the_function(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], told: str
) -> None:
    def charge(a: int, b: int = 0) -> None: ...

    with pytest.raises(TypeError, match="charge: ") as caught:
        signature(charge).encode(args, kwargs)
    assert told in str(caught.value)


# -- what is refused


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        object,
        1 + 2j,
        Path("x"),
        lambda: None,
        {"deep": [Opaque()]},
        "\ud800",
        {(1, 2): 3},
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_argument_that_cannot_be_sent_is_refused_by_name(value: Any) -> None:
    def charge(amount: int, extra: Any = None) -> None: ...

    with pytest.raises(Invalid, match=r"argument 'extra' of .*charge cannot be sent"):
        signature(charge).encode((1,), {"extra": value})


def test_what_contains_itself_is_refused() -> None:
    def charge(extra: Any) -> None: ...

    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Invalid, match="argument 'extra'"):
        signature(charge).encode((endless,), {})


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ("seven", "Expected `int`, got `str`"),
        (1.5, "float"),
        (None, "null"),
    ],
)
def test_an_argument_of_another_type_is_refused_when_it_is_submitted(
    argument: Any, told: str
) -> None:
    def charge(amount: int) -> None: ...

    with pytest.raises(Invalid, match=r"charge does not accept this") as caught:
        signature(charge).encode((argument,), {})
    assert told in str(caught.value)
    assert "amount" in str(caught.value)


def test_a_model_that_cannot_be_made_again_is_refused_whatever_it_raises() -> None:
    def greet(who: Grumpy) -> None: ...

    grumpy = Grumpy.model_construct(name="x")
    with pytest.raises(Invalid, match="greet does not accept this"):
        signature(greet).encode((grumpy,), {})
    with pytest.raises(Undecodable, match="greet"):
        signature(greet).decode(b'{"who": {"name": "x"}}')


def test_an_ambiguous_union_is_refused_when_it_is_declared() -> None:
    def charge(what: Point | Line) -> None: ...

    with pytest.raises(Invalid, match=r"parameter 'what' of .*charge"):
        signature(charge)


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"point": 1, "n": 1}',
        b'{"point": {"x": "one"}, "n": 1}',
        b'{"n": 1}',
        b'{"point": {"x": 1}, "n": ' + b"[" * 5000 + b"}",
    ],
)
def test_a_payload_that_no_longer_fits_says_why(payload: bytes) -> None:
    def draw(point: Point, n: Any) -> None: ...

    with pytest.raises(Undecodable, match=r"the arguments do not fit .*draw"):
        signature(draw).decode(payload)


def test_a_payload_says_where_it_does_not_fit() -> None:
    def draw(points: list[Point]) -> None: ...

    with pytest.raises(Undecodable, match=r"Expected `int`, got `str` - at `\$.points\[1\].x`"):
        signature(draw).decode(b'{"points": [{"x": 1}, {"x": "two"}]}')


def test_undecodable_is_an_error_of_this_library() -> None:
    with pytest.raises(FlowFabricError, match="Expected `int`"):
        decode(b'"x"', int)


def test_a_type_without_a_decoder_is_taken_as_it_comes() -> None:
    assert decode(b'{"x": 1}', Point | Line) == {"x": 1}
    assert decode(b"1", Annotated[int, []]) == 1


def test_what_was_not_awaited_is_refused_with_a_hint() -> None:
    class Later:
        def __await__(self) -> Generator[None]:
            yield

    with pytest.raises(Invalid, match="Later has no JSON form; is an `await` missing"):
        encode([Later()])


def test_what_cannot_be_encoded_says_which_type_stands_in_the_way() -> None:
    with pytest.raises(Invalid, match="Opaque"):
        encode(Opaque())
