"""`flowfabric workers …`"""

import asyncio
from typing import Annotated

import typer

from flowfabric.cli.connect import connect
from flowfabric.cli.documents import document
from flowfabric.cli.options import AsJson, Debug, Url
from flowfabric.cli.screen import Screen
from flowfabric.cli.words import local
from flowfabric.core.errors import NotFound
from flowfabric.core.registry import NotRegistered, Presence

app = typer.Typer(help="Look at the workers that are there.", no_args_is_help=True)

Namespace = Annotated[str, typer.Option(help="The namespace the workers are in.")]
Instance = Annotated[str, typer.Argument(metavar="INSTANCE", show_default=False)]

COLUMNS = ("instance", "worker", "running", "tasks", "lanes", "capabilities", "last seen")

_PAGE = 1000


@app.command(name="list")
def list_workers(
    namespace: Namespace = "default",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the live workers and what they can run."""
    asyncio.run(_list(url, namespace, Screen(as_json)))


@app.command()
def forget(
    instance: Instance,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "marked dead by hand",
    namespace: Namespace = "default",
    url: Url = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Take a worker off the list that will not come back. Its leases run out by themselves."""
    asyncio.run(_forget(url, instance, namespace, reason, Screen(as_json)))


async def _list(url: str | None, namespace: str, screen: Screen) -> None:
    rows: list[list[str]] = []
    async with connect(url) as fabric:
        engine = await fabric.engine()
        after = ""
        while page := await engine.workers.list(namespace=namespace, after=after, limit=_PAGE):
            for presence in page:
                if screen.as_json:
                    screen.document(document(presence))
                rows.append(_row(presence))
            after = page[-1].instance
    if screen.as_json:
        return
    screen.table(COLUMNS, rows)
    if not rows:
        screen.note("no workers: start one with flowfabric worker")


async def _forget(
    url: str | None, instance: str, namespace: str, reason: str, screen: Screen
) -> None:
    async with connect(url) as fabric:
        engine = await fabric.engine()
        answer = await engine.workers.mark_dead(instance, namespace=namespace, reason=reason)
    if isinstance(answer, NotRegistered):
        raise NotFound("worker", instance)
    if screen.as_json:
        screen.document({"instance": instance, "forgotten": True})
    else:
        screen.line(f"forgot {instance}")


def _row(presence: Presence) -> list[str]:
    return [
        presence.instance,
        presence.worker,
        f"{presence.running}/{presence.concurrency}",
        ", ".join(presence.kinds),
        ", ".join(presence.lanes) or "all",
        ", ".join(presence.capabilities),
        local(presence.seen_at),
    ]
