"""Errors arrive as the same class with the same text and members."""

import inspect
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.base import errors
from flowfabric.core.base.errors import FlowFabricError
from flowfabric.remote.errors import decode_error, encode_error
from flowfabric.remote.scalars import Misfit, decode_plain, encode_plain

VALUES: dict[str, Any] = {
    "detail": "why",
    "reason": "missing_tag",
    "text": "x",
    "what": "payload",
    "size": 9,
    "limit": 3,
    "missing": ("a", "b"),
    "entity": "execution",
    "key": UUID(int=3),
    "phase": "terminal",
    "outcome": "success",
    "epoch": 4,
    "attempt_id": UUID(int=5),
    "id": "01a1e105",
    "budget": "b",
    "dimension": "usd",
    "used": 1,
    "wanted": 2,
    "retry_after": 0.5,
    "scope": "read",
    "flow": UUID(int=6),
    "edge": UUID(int=7),
    "upstream": UUID(int=8),
    "downstream": UUID(int=9),
    "on": "on_any_end",
    "input": "x",
    "created_at": 10,
}
CLASSES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, FlowFabricError)
]


def made(cls: type[FlowFabricError]) -> FlowFabricError:
    parameters = inspect.signature(cls).parameters.values()
    named = {p.name: VALUES[p.name] for p in parameters if p.kind is p.KEYWORD_ONLY}
    return cls(*(VALUES[p.name] for p in parameters if p.kind is not p.KEYWORD_ONLY), **named)


def sent(error: FlowFabricError | TimeoutError) -> FlowFabricError | TimeoutError:
    return decode_error(decode_plain(encode_plain(encode_error(error))))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_arrives_as_it_was_raised(cls: type[FlowFabricError]) -> None:
    error = made(cls)
    found = sent(error)
    assert type(found) is cls
    assert str(found) == str(error)
    assert vars(found) == vars(error)
    assert isinstance(found, FlowFabricError)
    assert (found.code, found.retryable) == (error.code, error.retryable)


def test_a_timeout_arrives() -> None:
    found = sent(TimeoutError("not yet"))
    assert isinstance(found, TimeoutError)
    assert str(found) == "not yet"


def test_an_error_of_a_newer_release_is_at_least_of_its_family() -> None:
    found = decode_error([["Invented", "LeaseLost", "WrongState"], "why", {"more": 1}])
    assert type(found) is errors.LeaseLost
    assert str(found) == "lease_lost: why"


def test_an_unknown_error_is_an_error() -> None:
    assert type(decode_error([["Invented"], "why", {}])) is FlowFabricError


@pytest.mark.parametrize("plain", [None, [], [["A"], 1, {}], {"error": "x"}])
def test_what_is_no_error_is_refused(plain: Any) -> None:
    with pytest.raises(Misfit):
        decode_error(plain)
