"""`flowfabric demo`"""

from typing import Annotated

import typer
from typer import Option

from flowfabric.cli.command import AsJson, Debug
from flowfabric.cli.errors import no_server, usage
from flowfabric.demo.play import main


def demo(
    serve: Annotated[
        bool, Option("--serve", help="Serve the dashboard with a lively sample until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None,
        Option(min=0, max=65535, show_default="9090", help="Where the dashboard listens."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Watch runs survive a crash: a short tour on an embedded SQLite store.

    With --serve: server, dashboard, two workers and a sample application, in one command.
    """
    if port is not None and not serve:
        raise usage("--port goes with --serve")
    if not serve:
        raise typer.Exit(main(as_json=as_json))
    try:
        from flowfabric.demo import serve as lively
    except ModuleNotFoundError as error:
        raise no_server(error) from None
    raise typer.Exit(lively.main(port))
