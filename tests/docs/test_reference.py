"""The reference tells every public name, and nothing that is not there."""

import inspect
import re
from functools import cached_property
from typing import Any, get_overloads

import pytest

import flowfabric
from flowfabric import agents, testing
from flowfabric.agents import pydantic_ai
from flowfabric.integrations import django, fastapi, starlette
from tests.docs.pages import ROOT

REFERENCE = (ROOT / "docs" / "reference.md").read_text("utf-8")

PUBLIC = [
    *((flowfabric, name) for name in flowfabric.__all__),
    *((testing, name) for name in testing.__all__),
    *((agents, name) for name in agents.__all__),
    *((pydantic_ai, name) for name in ("DurableModel", "DurableToolset")),
    *((django, name) for name in django.__all__),
    *((fastapi, name) for name in fastapi.__all__),
    *((starlette, name) for name in ("get_fabric", "lifespan")),
]

TOLD_WITH_MEMBERS = [
    flowfabric.Fabric,
    flowfabric.Options,
    flowfabric.Task,
    flowfabric.Run,
    flowfabric.Context,
    flowfabric.SyncContext,
    flowfabric.Worker,
    flowfabric.WorkerOptions,
    flowfabric.RunFailed,
    flowfabric.Engine,
    testing.Harness,
    agents.Tool,
    agents.Toolbox,
]

TOLD_COMPLETELY: dict[type, set[str]] = {
    flowfabric.Context: set(),
    flowfabric.Run: set(),
    flowfabric.Fabric: {"block_on", "tasks", "url"},
}
"""Classes whose members the reference lists, but for some that applications need not call."""


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=[name for _, name in PUBLIC])
def test_the_reference_tells(module: Any, name: str) -> None:
    assert row_of(name)
    assert inspect.getdoc(getattr(module, name)), f"{name} has no docstring"


@pytest.mark.parametrize("cls", TOLD_WITH_MEMBERS, ids=lambda cls: cls.__name__)
def test_the_members_are_there_of(cls: type) -> None:
    told = set(re.findall(r"`([a-z_]+)`", row_of(cls.__name__)))
    assert told - members_of(cls) - {"async with", "gather"} == set()


@pytest.mark.parametrize("cls", TOLD_COMPLETELY, ids=lambda cls: cls.__name__)
def test_no_member_is_left_out_of(cls: type) -> None:
    told = set(re.findall(r"`([a-z_]+)`", row_of(cls.__name__)))
    members = {name for name in members_of(cls) if not name.startswith("_")}
    assert members - told - TOLD_COMPLETELY[cls] == set()


@pytest.mark.parametrize("cls", TOLD_WITH_MEMBERS, ids=lambda cls: cls.__name__)
def test_every_member_has_a_docstring_of(cls: type) -> None:
    """`help` explains what users call."""
    members = [
        (name, member)
        for name, member in inspect.getmembers(cls)
        if inspect.isroutine(member) or isinstance(member, property | cached_property)
    ]
    assert [
        name for name, each in members if not name.startswith("_") and not inspect.getdoc(each)
    ] == []


def row_of(name: str) -> str:
    """What a table says about a name that stands in its first column."""
    found = re.search(rf"^\|[^|]*`{name}\b[^|]*\|(.*)\|$", REFERENCE, re.MULTILINE)
    assert found is not None, f"docs/reference.md does not tell {name}"
    return found[1]


def members_of(cls: type) -> set[str]:
    """What an instance has, as far as its class says so."""
    return {*dir(cls), *re.findall(r"self\.(\w+)", inspect.getsource(cls))}


def test_the_guide_has_every_option_of_a_task() -> None:
    page = (ROOT / "docs" / "guide" / "tasks.md").read_text("utf-8")
    table = page[page.index("| option |") : page.index("A duration is text")]
    options = inspect.signature(get_overloads(flowfabric.Fabric.task)[-1]).parameters
    assert set(re.findall(r"`(\w+)`", table)) >= options.keys() - {"self"}
