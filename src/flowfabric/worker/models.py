"""Pydantic models as JSON. Pydantic is not a dependency: it is used if a task uses it."""

import inspect
import sys
import typing
from functools import lru_cache
from typing import Any

import msgspec

ADAPTER = "__flowfabric_adapter__"
"""The attribute of a stand-in with the adapter of pydantic that reads the annotation."""


MOST_PROBLEMS = 5
"""How many problems of a model an error tells."""


def dump(model: Any) -> Any:
    """A model as it can be read again: by the names of its fields, without computed ones."""
    fields = model.__pydantic_serializer__
    return fields.to_python(model, mode="json", by_alias=False, round_trip=True)


def load(type: Any, value: Any) -> Any:
    """A model from what JSON contained, by the names of its fields or by their aliases. It is
    validated as JSON, so that a strict model accepts the text of a date."""
    return type.model_validate_json(msgspec.json.encode(value), **_by_both(type))


def problems_of(error: Exception) -> str:
    """What pydantic found wrong, in one line: where, and why, without the values, which may be
    secret. Empty for any other error."""
    if not hasattr(error, "errors") or not type(error).__module__.startswith("pydantic"):
        return ""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [_problem(each["loc"], each["msg"]) for each in found[:MOST_PROBLEMS]]
    more = len(found) - len(shown)
    return "; ".join([*shown, f"and {more} more"] if more else shown)


def _problem(place: tuple[str | int, ...], why: str) -> str:
    """`lines[0].price: Input should be a valid number`"""
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return f"{where.removeprefix('.')}: {why}" if where else why


class _AcceptsAll(type):
    """A decoder checks that it was given an instance; pydantic has checked the value already."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def load_with(adapter: Any, value: Any) -> Any:
    """As `load`, for the adapter of a stand-in."""
    names = _by_both_of(adapter.validate_json)
    return adapter.validate_json(msgspec.json.encode(value), **names)


def adapted(hint: Any) -> Any:
    """A stand-in for the annotation if it contains models that only pydantic can tell apart;
    otherwise the annotation itself."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not _contains_model(hint):
        return hint
    return _AcceptsAll("Adapted", (), {ADAPTER: pydantic.TypeAdapter(hint)})


def _contains_model(hint: Any) -> bool:
    if hasattr(hint, "__pydantic_validator__"):
        return True
    return any(_contains_model(each) for each in typing.get_args(hint))


@lru_cache(maxsize=1024)
def _by_both(type: Any) -> dict[str, bool]:
    return _by_both_of(type.model_validate_json)


def _by_both_of(validate: Any) -> dict[str, bool]:
    """Since pydantic 2.11 a caller may ask for names and aliases."""
    known = inspect.signature(validate).parameters
    return {"by_alias": True, "by_name": True} if "by_name" in known else {}


def json_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a struct whose fields may be models."""
    shared: dict[str, Any] = {}

    def schema_of(hint: Any) -> dict[str, Any]:
        if (adapter := getattr(hint, ADAPTER, None)) is not None:
            found = adapter.json_schema()
        elif hasattr(hint, "model_json_schema"):
            found = hint.model_json_schema()
        else:
            return {}
        shared.update(found.pop("$defs", {}))
        return dict(found)

    (_,), components = msgspec.json.schema_components(
        [struct], schema_hook=schema_of, ref_template="#/$defs/{name}"
    )
    whole = dict(components.pop(struct.__name__))
    whole.pop("title", None)
    shared.update(components)
    return {**whole, "$defs": shared} if shared else whole
