"""`flowfabric flow create`, `add`, `join`, `edge`, `needs`, `seal`: a flow grown piece by piece."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated
from uuid import UUID, uuid5

import msgspec
import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.flows import FlowId, parsed
from flowfabric.cli.json import Document, document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.output import Screen
from flowfabric.cli.run_list import read_tag
from flowfabric.cli.values import read_json
from flowfabric.core.base.ids import ExecutionId
from flowfabric.core.execution.submission import Submission
from flowfabric.core.flow.grow import AlreadyMember, AlreadyStaged
from flowfabric.core.flow.join import AllOf, AnyOf, Edge, JoinPolicy, On, Quorum, Rest
from flowfabric.engine.engine import Engine
from flowfabric.engine.flow.flows import FlowCreated

Member = Annotated[str, typer.Argument(metavar="RUN", show_default=False)]
Work = Callable[[Engine], Awaitable[tuple[Document, str]]]


def create(
    kind: Annotated[str, typer.Argument(metavar="KIND", show_default=False, help="Its name.")],
    id: Annotated[
        str | None, typer.Option("--id", show_default=False, help="Creating it again is harmless.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace")] = "default",
    tag: Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE")] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Create an open flow without members, and print its id.

    `flow add` and `flow edge` grow it, `flow seal` starts it.
    """
    given = None if id is None else parsed(id)
    tags = dict(pair for text in tag or () if (pair := read_tag(text)) is not None)

    async def work(engine: Engine) -> tuple[Document, str]:
        made = await engine.flows.create(kind, id=given, namespace=namespace, tags=tags)
        known = str(made.id if isinstance(made, FlowCreated) else given)
        return {"id": known, "created": isinstance(made, FlowCreated)}, known

    asyncio.run(_do(url, work, Screen(as_json)))


def add(  # noqa: PLR0913 - the options are the interface
    flow: FlowId,
    kind: Annotated[str, typer.Argument(metavar="TASK", show_default=False)],
    args: Annotated[str, typer.Option("--args", metavar="JSON", help="Its arguments.")] = "{}",
    lane: Annotated[str, typer.Option("--lane")] = "default",
    namespace: Annotated[str, typer.Option("--namespace")] = "default",
    key: Annotated[
        str | None, typer.Option("--key", show_default=False, help="A known key adds nothing.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Add a run to a flow; it waits until the flow is sealed. Prints its id."""
    payload = msgspec.json.encode(read_json(args, "--args"))
    wanted = Submission(
        kind=kind, payload=payload, lane=lane, namespace=namespace, key=key, encoding="json"
    )
    target = parsed(flow)

    async def work(engine: Engine) -> tuple[Document, str]:
        added = await engine.flows.add(target, wanted)
        return {**document(added), "added": not isinstance(added, AlreadyMember)}, str(added.id)

    asyncio.run(_do(url, work, Screen(as_json)))


def join(
    flow: FlowId, run: Member, url: Url = None, as_json: AsJson = False, debug: Debug = False
) -> None:
    """Make a run that was submitted for this flow a member of it."""
    target = parsed(flow)

    async def work(engine: Engine) -> tuple[Document, str]:
        added = await engine.flows.join(target, run)
        known = isinstance(added, AlreadyMember)
        return {**document(added), "added": not known}, "is a member already" if known else "added"

    asyncio.run(_do(url, work, Screen(as_json)))


def edge(  # noqa: PLR0913 - the options are the interface
    flow: FlowId,
    upstream: Annotated[str, typer.Argument(metavar="UPSTREAM", show_default=False)],
    downstream: Annotated[str, typer.Argument(metavar="DOWNSTREAM", show_default=False)],
    on: Annotated[On, typer.Option("--on", metavar="END", help=f"{', '.join(On)}.")] = On.SUCCESS,
    input: Annotated[
        str | None,
        typer.Option("--input", show_default=False, help="The parameter that gets the result."),
    ] = None,
    expected_revision: Annotated[
        int | None,
        typer.Option("--revision", min=0, show_default=False, help="Only if the graph is at it."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a run of a flow wait for another one. The same edge again changes nothing."""
    home, ends = parsed(flow), (ExecutionId(upstream).uuid, ExecutionId(downstream).uuid)
    id = uuid5(home, f"{ends[0]} {ends[1]} {on} {input or ''}")
    wanted = Edge(id, home, *ends, on=on, input=input)

    async def work(engine: Engine) -> tuple[Document, str]:
        staged = await engine.flows.stage(wanted, expected_revision=expected_revision)
        known = isinstance(staged, AlreadyStaged)
        text = f"{'known' if known else 'added'}: the graph is at revision {staged.revision}"
        return {"edge": str(id), "added": not known, "revision": staged.revision}, text

    asyncio.run(_do(url, work, Screen(as_json)))


def needs(
    flow: FlowId,
    run: Member,
    any_of: Annotated[bool, typer.Option("--any", help="The first upstream is enough.")] = False,
    quorum: Annotated[
        int | None, typer.Option("--quorum", min=1, show_default=False, help="So many are enough.")
    ] = None,
    let_run: Annotated[
        bool, typer.Option("--let-run", help="Do not cancel the upstreams that are left.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say how many of its upstreams a run needs, before its first edge; without an option all."""
    rest = Rest.LET_RUN if let_run else Rest.CANCEL
    policy: JoinPolicy = AllOf()
    if quorum is not None:
        policy = Quorum(quorum, rest)
    elif any_of:
        policy = AnyOf(rest)
    target = parsed(flow)

    async def work(engine: Engine) -> tuple[Document, str]:
        changed = await engine.flows.set_join(target, run, policy)
        return {"id": run, "changed": changed}, "set" if changed else "was set before"

    asyncio.run(_do(url, work, Screen(as_json)))


def seal(flow: FlowId, url: Url = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """Declare the graph complete: its members start as their upstreams allow."""
    target: UUID = parsed(flow)

    async def work(engine: Engine) -> tuple[Document, str]:
        sealed = await engine.flows.seal(target)
        return {"id": str(target), "sealed": sealed}, "sealed" if sealed else "was sealed before"

    asyncio.run(_do(url, work, Screen(as_json)))


async def _do(url: str | None, work: Work, screen: Screen) -> None:
    async with connect(url) as fabric:
        told, text = await work(await fabric.engine())
    if screen.as_json:
        screen.document(told)
    else:
        screen.line(text)


COMMANDS = (create, add, join, edge, needs, seal)
"""The commands of `flowfabric flow` that are here."""
