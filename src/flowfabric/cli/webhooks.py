"""`flowfabric webhooks …`"""

from typing import Annotated

from typer import Argument, Option, Typer

from flowfabric.cli.command import command
from flowfabric.cli.format import local
from flowfabric.cli.json import document
from flowfabric.cli.output import Cells, Screen
from flowfabric.cli.parse import read_tag
from flowfabric.cli.table import Table
from flowfabric.fabric import Fabric
from flowfabric.worker.api.webhooks import WebhookInfo

app = Typer(help="Post events to URLs.", no_args_is_help=True)

Name = Annotated[str, Argument(metavar="NAME", help="The webhook.")]
Names = Annotated[list[str], Argument(metavar="NAME", help="One or more webhooks.")]


def _row(webhook: WebhookInfo) -> Cells:
    return [
        ("name", webhook.name),
        ("url", webhook.url),
        ("namespace", webhook.namespace or "all"),
        ("families", ", ".join(webhook.families) or "all"),
        ("tag", "=".join(webhook.tag) if webhook.tag else ""),
        ("state", "paused" if webhook.paused else "active"),
        ("reason", webhook.reason),
        ("since", local(webhook.created_at)),
    ]


WEBHOOK = Table[WebhookInfo](row=_row, fields=_row, empty="no webhooks")


@command(app, "list")
async def list_webhooks(
    fabric: Fabric,
    screen: Screen,
    namespace: Annotated[str | None, Option(help="Only those of this namespace.")] = None,
) -> None:
    """List the webhooks by name."""
    WEBHOOK.lines(screen, await fabric.webhooks.list(namespace=namespace))


@command(app)
async def create(
    fabric: Fabric,
    screen: Screen,
    name: Name,
    target: Annotated[str, Argument(metavar="URL", help="Where events are posted to.")],
    namespace: Annotated[str | None, Option(help="Only events of this namespace.")] = None,
    family: Annotated[
        list[str] | None,
        Option(help="completion, lease, signal, operator or worker; repeatable, default all."),
    ] = None,
    tag: Annotated[str | None, Option(help="Only runs with this tag: app.tenant=acme.")] = None,
    secret: Annotated[
        str | None,
        Option(envvar="FLOWFABRIC_WEBHOOK_SECRET", help="Signs deliveries; default random."),
    ] = None,
) -> None:
    """Post events from now on to a URL, and print the secret that signs them.

    A webhook that exists is changed and continues where it was. A worker with --webhooks delivers.
    """
    made = await fabric.webhooks.set(
        name,
        target,
        namespace=namespace,
        families=family or (),
        tag=read_tag(tag),
        secret=secret,
    )
    screen.answer(document(made), f"{made.secret}")


@command(app)
async def pause(
    fabric: Fabric,
    screen: Screen,
    names: Names,
    reason: Annotated[str, Option(help="Why, for those who look later.")] = "",
) -> None:
    """Deliver nothing until `resume`; events are kept meanwhile."""
    for name in names:
        screen.answer(document(await fabric.webhooks.pause(name, reason=reason)), f"paused {name}")


@command(app)
async def resume(fabric: Fabric, screen: Screen, names: Names) -> None:
    """Deliver again, what happened meanwhile first."""
    for name in names:
        screen.answer(document(await fabric.webhooks.resume(name)), f"resumed {name}")


@command(app)
async def delete(fabric: Fabric, screen: Screen, names: Names) -> None:
    """Delete webhooks; deliveries that are waiting are not sent."""
    for name in names:
        await fabric.webhooks.delete(name)
        screen.answer({"name": name, "deleted": True}, f"deleted {name}")


@command(app)
async def test(fabric: Fabric, screen: Screen, name: Name) -> None:
    """Deliver a test event, and print the id of the run that delivers it."""
    id = str((await fabric.webhooks.test(name)).id)
    screen.answer({"name": name, "id": id}, id)
