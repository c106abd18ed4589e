"""The table of operations: complete, and in agreement with the engine."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields

import flowfabric
from flowfabric.core.execution.frame import MODES, Encoding, NewFrame
from flowfabric.core.execution.model import WorkerIdentity
from flowfabric.core.execution.submission import Submission
from flowfabric.engine.engine import Engine
from flowfabric.remote.engine import RemoteEngine, RemoteService
from flowfabric.remote.operations import NEW_WORK, OPERATIONS, SERVICES, Again, Operation
from flowfabric.remote.wire import ANSWERS, ARGUMENTS, travel_of

ROOT = Path(flowfabric.__file__).parent
CALLERS = ("worker", "cli", "agents", "integrations", "fabric.py")
SCOPES = {"read", "submit", "work", "signal", "operate", "admin"}
NEEDS_DATABASE = {"attempts.ended_elsewhere", "webhooks.find", "webhooks.is_genuine"}
"""For runs that end in a transaction of the application, and for workers that deliver webhooks."""


def files() -> list[Path]:
    found = [ROOT / name for name in CALLERS]
    return [path for each in found for path in ([each] if each.is_file() else each.rglob("*.py"))]


def called(path: Path) -> set[str]:
    """The operations `engine.service.method` that a file uses."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(ast.Attribute(inner, service), method) if service in SERVICES:
                name = inner.id if isinstance(inner, ast.Name) else getattr(inner, "attr", "")
                if name in ("engine", "_engine"):
                    found.add(f"{service}.{method}")
            case _:
                pass
    return found


def test_everything_that_is_called_can_be_called_through_a_server() -> None:
    used = {name for path in files() for name in called(path)}
    assert len(used) > 80
    own = {
        f"{name}.{method}"
        for cls in RemoteService.__subclasses__()
        for name in SERVICES
        for method in vars(cls)
    }
    assert used - set(OPERATIONS) - own == NEEDS_DATABASE


def test_new_work_names_operations() -> None:
    assert set(OPERATIONS) >= NEW_WORK


def test_the_remote_engine_has_what_is_used_of_an_engine() -> None:
    used: set[str] = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Attribute(ast.Name("engine"), name):
                    used.add(name)
                case ast.Attribute(ast.Attribute(attr="engine" | "_engine"), name):
                    used.add(name)
                case _:
                    pass
    known = set(SERVICES) | set(dir(RemoteEngine)) | {"hints", "leases", "sweep"}
    assert {name for name in used if not name.startswith("_")} - known == set()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda each: each.name)
def test_an_operation_agrees_with_the_engine(operation: Operation) -> None:
    travel = travel_of(operation.name)
    function: Any = getattr(SERVICES[operation.service], operation.method)
    assert inspect.iscoroutinefunction(function)
    assert set(operation.scopes) <= SCOPES
    assert operation.scopes
    assert {name for name, _ in operation.touches} <= set(travel.arguments)
    assert not operation.mints or operation.mints in travel.arguments
    assert operation.again is not Again.KEYED or "key" in travel.arguments


def test_rows_that_only_the_engine_may_supply_do_not_travel() -> None:
    assert "made" not in travel_of("suspensions.token_again").arguments
    assert "suspensions.tickets" not in OPERATIONS
    assert not {name for name in OPERATIONS if name.startswith(("inbox.", "sweep."))}


def test_every_member_of_what_travels_can_travel() -> None:
    """Shapes of members are made when the first value comes, which is too late to find out."""
    for name in OPERATIONS:
        travel_of(name)
    for codec in (ARGUMENTS, ANSWERS):
        seen: set[Any] = set()
        while found := set(codec._shapes) - seen:
            seen |= found
            for cls in found:
                if isinstance(cls, type) and issubclass(cls, Struct) and cls not in codec._instead:
                    for field in fields(cls):
                        codec.shape(field.type)


async def test_a_new_token_reaches_the_one_it_was_made_for(remote: Engine) -> None:
    made = await remote.tokens.create("ci", ["read"])
    assert made.secret.reveal().startswith("ff_ci_")
    again = await remote.tokens.rotate("ci")
    assert again.secret.reveal() != made.secret.reveal()
    assert "ff_ci" not in repr(again)


async def test_the_summary_of_a_stream_travels(remote: Engine) -> None:
    await remote.executions.submit(Submission(kind="job"))
    (claim,) = await remote.claims.claim(WorkerIdentity("w", "w-1"))
    frame = NewFrame(payload=b'{"a":1}', mode=MODES["summary"], encoding=Encoding.JSON)
    await remote.streams.append(claim, [frame])
    found = await remote.streams.summary(claim.id, 0)
    assert found is not None
    assert bytes(found.document) == b'{"a":1}'
